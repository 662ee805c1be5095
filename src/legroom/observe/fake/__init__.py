"""Fake tensors: device tensors that have a shape but no data."""
