"""Splits a model into stages: records the forward graph, finds the positions at which it can be split, and selects the
split that balances memory.
"""
