"""The search space: parameters, their domains and conditions."""
