"""A model cut into stages: what its forward pass does, where it can be cut, and which cut leaves all devices equally full."""
