"""Atomic checkpoints with the complete state of a training run."""
