"""Helper functions for rendering that several reports share."""
