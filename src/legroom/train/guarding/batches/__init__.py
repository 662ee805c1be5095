"""Splits a batch, and weights the micro-batches."""
