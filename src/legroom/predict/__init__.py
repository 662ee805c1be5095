"""Predicts whether a run fits a GPU. The run is traced without data, and its requests are replayed through the
allocator of that GPU."""
