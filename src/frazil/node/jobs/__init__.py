"""Long work of a node: verbs run as child processes."""
