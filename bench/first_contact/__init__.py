"""Public training programs that were not written for Legroom."""
