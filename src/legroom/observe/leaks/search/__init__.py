"""Searches for the variables and lines that explain growing memory. In a loop without a leak, the scans find nothing to
explain, and no module of this package is imported.
"""
