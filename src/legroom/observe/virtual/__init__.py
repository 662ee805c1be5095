"""Virtual GPUs of any size on a machine without a GPU: `VirtualGPU` in `gpu`, and one module for each simulated part of
CUDA.
"""
