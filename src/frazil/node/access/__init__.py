"""Who calls, and what they may do: the only place that decides."""
