"""Delivery decisions of a subscription: which message goes to which consumer, and what to store. No I/O."""
