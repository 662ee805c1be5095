"""Checks this machine's driver and its installation of CUDA, cuDNN and torch."""
