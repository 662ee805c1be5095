"""120 training steps from many fields, by two authors, scored before any rule was fitted to them."""
