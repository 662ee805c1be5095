"""Replacements for the parts of PyTorch that a virtual GPU changes."""
