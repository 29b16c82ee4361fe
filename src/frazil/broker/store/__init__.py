"""The broker's stored state: records, progress, the claim to the metadata store."""
