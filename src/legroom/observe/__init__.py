"""A running program becomes events."""
