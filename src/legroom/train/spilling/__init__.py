"""Saved activations that wait in host memory."""
