"""Predicts whether a run fits a GPU: traces without data, replayed through the allocator of that GPU."""
