"""Long-running work as jobs: verifications, table maintenance, log checks."""
