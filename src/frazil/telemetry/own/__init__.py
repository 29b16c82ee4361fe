"""Export requests of this process itself, built from its log records, metrics and spans. Pure: nothing here waits."""
