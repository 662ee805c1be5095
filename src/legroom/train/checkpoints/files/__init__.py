"""Crash-safe files and folders."""
