"""`legroom monitor`: GPUs, processes and runs, as text, on a terminal and in a browser."""
