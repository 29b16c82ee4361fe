"""The lake: Iceberg tables, reached through PyIceberg and through nothing else."""
