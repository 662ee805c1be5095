"""Determines batch sizes: micro-batch sizes, cached sizes, and the largest batch size that fits."""
