"""Realistic training programs with and without leaks. Comments mark the lines that cause the leaks."""
