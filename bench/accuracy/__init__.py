"""Programs that compare estimates with measured memory."""
