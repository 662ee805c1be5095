"""Keeps saved activations in host memory until the backward pass."""
