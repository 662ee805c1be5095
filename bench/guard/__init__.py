"""Guarded steps, spilling and checkpoints: correctness under faults, and cost."""
