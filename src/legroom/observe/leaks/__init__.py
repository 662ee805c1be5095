"""Leak detection in a training loop: counters after every iteration, heap scans when something grows, then the holder."""
