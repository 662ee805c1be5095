"""The parts of PyTorch that a virtual GPU replaces. Each part has its own module."""
