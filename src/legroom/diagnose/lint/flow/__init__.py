"""Flow analysis: what each name may refer to as the code runs."""
