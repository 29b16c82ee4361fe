"""Upload of a log's rows to the object store, by the owner of its folder."""
