"""Programs that measure the accuracy of the leak detector, the linter and the error explainer."""
