"""The live table, summary and HTML report of a search."""
