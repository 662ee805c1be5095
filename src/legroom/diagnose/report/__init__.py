"""The report of a run as plain data."""
