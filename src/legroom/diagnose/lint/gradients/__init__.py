"""Finds code that builds an autograd graph that no backward pass uses (LG201)."""
