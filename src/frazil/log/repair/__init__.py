"""Recovery after a crash, checks of all bytes, repair and renumbering."""
