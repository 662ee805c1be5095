"""Detects leaks in a training loop. The detector reads counters after every iteration, scans the heap when memory
grows, and finds the variable that retains the memory.
"""
