"""Predicts whether a run fits on a GPU. The run is traced without data, and its memory requests are replayed through the
allocator of that GPU."""
