"""The doors: thin adapters over the storage. None imports another."""
