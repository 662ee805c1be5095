"""The processes that trace scripts."""
