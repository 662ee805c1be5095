"""Renders findings and ledgers as text, HTML and JSON. This package computes no results. It renders the results of
other packages.
"""
