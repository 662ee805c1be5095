"""Makes pytest add this folder to `sys.path`, so that tests can import its helper modules."""
