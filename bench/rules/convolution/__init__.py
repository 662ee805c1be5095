"""Programs that record the workspaces of convolutions, and build the table and the forest."""
