"""Create, change, list, describe and delete topics."""
