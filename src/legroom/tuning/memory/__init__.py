"""Estimates the memory of configurations, and decides which trials share a GPU."""
