"""Renders findings and ledgers as text, HTML and JSON. Computes nothing."""
