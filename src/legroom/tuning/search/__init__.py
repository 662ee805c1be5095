"""Searchers: which configuration is tried next."""
