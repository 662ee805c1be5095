"""The parts of PyTorch that a virtual GPU replaces, one module for each."""
