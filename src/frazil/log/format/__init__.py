"""The bytes of a log: segment frames, encoded batches, checksummed JSON records."""
