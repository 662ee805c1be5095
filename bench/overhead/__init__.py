"""Programs that measure the cost of recording, capturing and watching."""
