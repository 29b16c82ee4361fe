"""Quotas of topics: who created each topic, how many each principal has, and how much their logs hold."""
