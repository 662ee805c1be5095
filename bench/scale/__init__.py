"""Programs that check and measure training on several GPUs: strategies, balance and failures."""
