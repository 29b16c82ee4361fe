"""What a node knows about movers: the lease, their status, the progress of each table."""
