"""Renders findings and ledgers as text, HTML and JSON. This package computes no results and only renders the results of
other packages.
"""
