"""Helpers that several measuring programs share."""
