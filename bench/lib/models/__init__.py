"""Models with random weights for training steps."""
