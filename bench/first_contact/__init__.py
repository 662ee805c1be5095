"""Trials with public training programs that were not written for Legroom."""
