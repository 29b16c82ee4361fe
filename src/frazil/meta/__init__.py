"""Small facts that must outlive a process: a port, and what implements it."""
