"""Where the audit log goes: a file, and a topic if wanted."""
