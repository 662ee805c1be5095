"""A sandbox for traced scripts. Files that they write, rename or delete do not change the user's files."""
