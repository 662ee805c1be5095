"""A sandbox for traced scripts. When a script writes, renames or deletes files, the user's files do not change."""
