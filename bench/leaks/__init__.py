"""Programs that measure the results of the leak detector, the linter and the error explainer."""
