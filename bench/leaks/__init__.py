"""What the leak detector, the linter and the error explainer find."""
