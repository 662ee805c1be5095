"""Atomic checkpoints of everything that a training needs to continue."""
