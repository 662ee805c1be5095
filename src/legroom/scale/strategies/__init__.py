"""Engines that train a model under each strategy."""

NAMES = ("auto", "ddp", "fsdp", "pipeline", "split", "dp")
