"""From one GPU to many: one model, one script, any number of processes and devices."""
