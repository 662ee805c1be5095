"""Runs trials on Ray Tune."""
