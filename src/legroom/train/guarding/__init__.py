"""The guarded training step, which recovers from out-of-memory errors by splitting the batch."""
