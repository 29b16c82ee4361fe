"""Batches from clients: the numbered form of Frazil clients, and plain batches of any Flight client."""
