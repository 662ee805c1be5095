"""The guarded training step: it recovers from out-of-memory errors by splitting the batch."""
