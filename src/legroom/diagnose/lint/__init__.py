"""Implements `legroom lint`, which finds memory bugs in source code.

The linter parses a file with libcst. The flow analysis (`flow`) determines which values have an autograd graph. Each
module in `rules` checks one rule. A fix edits the text of the file at a few places, so everything else stays
unchanged. Importing this package imports no other module. `engine` requires libcst.
"""
