"""Programs that measure hyperparameter search: lost trials, packing, overhead and resuming."""
