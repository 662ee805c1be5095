"""Virtual GPUs of any size on a machine without a GPU. `VirtualGPU` is in `gpu`, and each simulated part of CUDA has
its own module.
"""
