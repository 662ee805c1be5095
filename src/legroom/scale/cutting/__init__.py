"""Splits a model into stages: its forward graph, the positions at which it can be split, and the split that balances memory."""
