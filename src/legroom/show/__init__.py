"""Findings and ledgers become something to read. Computes nothing."""
