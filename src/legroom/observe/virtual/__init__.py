"""GPUs of any size on a machine with none: `VirtualGPU` in `gpu`, and one file for each thing it must pretend."""
