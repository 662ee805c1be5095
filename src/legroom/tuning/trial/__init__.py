"""Trials: their functions, processes and records."""
