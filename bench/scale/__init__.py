"""Training on several GPUs: strategies, balance, failures."""
