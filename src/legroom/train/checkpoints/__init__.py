"""Checkpoints: all that a training needs to go on, written so that a kill at any moment loses none."""
