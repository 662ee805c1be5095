"""Atomic checkpoints of everything that a training run needs to continue."""
