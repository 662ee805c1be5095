"""Schedulers decide which trials stop early."""
