"""Puts this directory on `sys.path`, so that the tests below it can import `example_events`."""
