"""A sandbox for traced scripts. The user's files do not change when a script writes, renames or deletes files."""
