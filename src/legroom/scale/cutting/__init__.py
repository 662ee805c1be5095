"""Splits a model into stages. This package records the forward graph, finds the positions at which the graph can be
split, and selects the split that balances memory."""
