"""Models with random weights that training steps are built from."""
