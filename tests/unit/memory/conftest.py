"""Makes pytest add this folder to `sys.path`, so that the tests below it can import `example_events`."""
