"""Evidence for the values of names: how a file uses a name, or tests it."""
