"""Training steps whose memory was measured on an H200."""
