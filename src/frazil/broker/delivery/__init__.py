"""How a subscription decides: which message goes to which consumer, and what must be stored. Nothing here does I/O."""
