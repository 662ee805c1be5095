"""LG4xx: mixed precision and autograd."""
