"""Batch sizes: micro-batch sizes, cached sizes, and the search for the largest batch size."""
