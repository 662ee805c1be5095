"""Memory of trials. It determines whether a configuration fits, and which trials share a GPU."""
