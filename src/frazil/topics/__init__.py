"""A topic over all its tiers: what needs both the log and the lake."""
