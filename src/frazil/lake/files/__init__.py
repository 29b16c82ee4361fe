"""Data files and manifests: locations, file access, writing and checking."""
