"""Training that fits into memory: guarded steps, batch sizes, spilling, checkpoints, precision and transfer learning."""
