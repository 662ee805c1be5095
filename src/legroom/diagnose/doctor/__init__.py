"""Checks of this machine's driver, CUDA, cuDNN and torch."""
