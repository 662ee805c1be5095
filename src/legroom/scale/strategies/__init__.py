"""One file per strategy; each makes an engine from a plain model and optimizer."""

NAMES = ("auto", "ddp", "fsdp", "pipeline", "split", "dp")
