"""Virtual GPUs in `nn.DataParallel`, process groups and DTensor."""
