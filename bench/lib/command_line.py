"""The command line of a benchmark program. Its help is the module's docstring."""

import argparse


def command_line(doc: str | None) -> argparse.ArgumentParser:
    """Return a parser whose help shows `doc` unchanged."""
    return argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
