"""The capture file: written, trimmed and read."""
