"""Ranks that decide together: one that runs out of memory keeps its appointments, and all take the same split."""
