"""Where topics go: the loads, the plans, the leader that follows them, and moves that somebody asks for."""
