"""Implements `legroom lint`, which finds memory bugs in source code.

The linter parses a file with libcst. The flow analysis (`flow`) determines which values have an autograd graph. Each
module in `rules` checks one rule. A fix edits only a few positions of the text, so everything else stays unchanged.
"""
