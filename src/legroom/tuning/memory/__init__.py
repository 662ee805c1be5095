"""Memory of trials: whether a configuration fits, and which trials share a GPU."""
