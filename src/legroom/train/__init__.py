"""Training that fits: steps that survive a full GPU, and the sizes they take."""
