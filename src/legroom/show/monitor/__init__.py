"""`legroom monitor`: Views of GPUs, processes and runs: as text, live on a terminal, and as a web page."""
