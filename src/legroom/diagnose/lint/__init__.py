"""The memory bugs that can be read off the code: `legroom lint`.

A file is parsed with libcst (`program`), followed statement by statement to know which values carry a graph (`flow`), and shown to one
module per rule (`rules`). What they find is told with its place, and mended in the text itself, so that all else stays as it was.
Importing this package loads nothing; `engine` needs libcst.
"""
