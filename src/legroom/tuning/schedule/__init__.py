"""Schedulers: which trials stop early."""
