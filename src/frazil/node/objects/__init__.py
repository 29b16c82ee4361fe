"""The object tier of a data folder: its parts, its guard, its retention, and the removal of deleted topics' objects."""
