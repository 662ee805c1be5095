"""How close estimates come to measured memory."""
