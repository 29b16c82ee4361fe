"""Catalogs: open the catalog of the settings, and work around what PyIceberg lacks for each kind."""
