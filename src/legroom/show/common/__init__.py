"""Parts that several reports share."""
