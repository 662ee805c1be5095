"""The command line of a benchmark program. The help text is the docstring of the program's module."""

import argparse


def command_line(doc: str | None) -> argparse.ArgumentParser:
    """Return a parser whose help shows `doc` unchanged."""
    return argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
