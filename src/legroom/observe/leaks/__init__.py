"""Watching a training loop for memory that it keeps: counters always, a census when something grows, then the holder."""
