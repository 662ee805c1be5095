"""The capture file: writing, trimming and reading."""
