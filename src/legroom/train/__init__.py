"""Training within the available memory: guarded steps, batch sizes, spilling, checkpoints, precision and transfer
learning."""
