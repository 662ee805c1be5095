"""Splits a model into stages. The package records the forward graph, finds the positions at which it can be split, and
selects the split that balances memory.
"""
