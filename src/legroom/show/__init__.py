"""Renders findings and ledgers as text, HTML and JSON. This package only renders the results of other packages."""
