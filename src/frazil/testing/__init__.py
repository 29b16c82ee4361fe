"""Shipped for tests, ours and yours: a disk that forgets and fails, a clock that stands still."""
