"""Starting the ranks of one program together: what is planned, how it is run, how it ended."""
