"""Flow analysis: determines which values each name may refer to while the code runs."""
