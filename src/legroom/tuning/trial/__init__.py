"""A trial with its function, its process and its records."""
