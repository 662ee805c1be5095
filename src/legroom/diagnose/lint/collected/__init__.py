"""Finds containers that collect values of many steps or batches."""
