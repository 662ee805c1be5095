"""A sandbox for scripts that are traced: nothing that they write, rename or delete changes the user's files."""
