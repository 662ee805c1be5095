"""Splitting a batch, and weighting the micro-batches."""
