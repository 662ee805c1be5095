"""Searchers decide which configuration is tried next."""
