"""The progress line of `legroom.watch`."""
