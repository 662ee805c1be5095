"""Renders the results of other packages as text, HTML and JSON."""
