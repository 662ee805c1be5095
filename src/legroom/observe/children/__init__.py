"""The processes that a recorded program starts: their captures, and their state for `legroom monitor`."""
