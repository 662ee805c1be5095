"""Records the memory events of a running program."""
