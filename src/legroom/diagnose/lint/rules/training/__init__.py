"""Rules about training steps: backward passes, gradients and optimizers."""
