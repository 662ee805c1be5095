"""Programs that measure the cost of guarded steps, spilling and checkpoints, and their correctness under faults."""
