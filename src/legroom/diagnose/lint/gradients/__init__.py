"""Code that computes an autograd graph which no backward pass uses, for LG201."""
