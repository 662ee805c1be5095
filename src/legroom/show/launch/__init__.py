"""Output and summary of a launch."""
