"""Programs that record and compare the workspaces of recurrent layers."""
