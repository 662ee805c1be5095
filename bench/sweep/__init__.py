"""Every operation that a training script may call, measured and traced."""
