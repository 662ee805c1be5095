"""Determines whether a configuration fits into memory, and which trials share a GPU."""
