"""The serving process: `frazil serve` runs a node with its protocols, metrics and a mover process."""
