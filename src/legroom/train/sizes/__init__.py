"""How large: micro-batches from failures and clean steps, plans remembered between runs, the largest batch found by running."""
