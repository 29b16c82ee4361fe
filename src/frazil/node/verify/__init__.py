"""Verification that every acknowledged message is in exactly one place."""
