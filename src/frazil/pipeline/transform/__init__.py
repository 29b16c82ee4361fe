"""Statements of topics, run by Spark over the rows that are due."""
