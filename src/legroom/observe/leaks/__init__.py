"""Detects leaks in a training loop: reads counters after every iteration, scans the heap when something grows, and
finds the holder."""
