"""The folder of the helper modules of these tests."""
