"""Programs that record and compare the temporary memory of single operations."""
