"""One trial: its function, its process and its records."""
