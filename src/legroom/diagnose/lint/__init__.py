"""`legroom lint`: memory bugs that are visible in source code.

A file is parsed with libcst, the flow analysis (`flow`) determines which values have an autograd graph, and each module
in `rules` checks one rule. Fixes edit the text of the file, so everything else stays unchanged. Importing this package
imports no other module. `engine` requires libcst.
"""
