"""Finds containers that collect values from many steps or batches."""
