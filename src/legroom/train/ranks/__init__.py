"""Coordination between ranks. If one rank runs out of memory, no rank hangs, and all ranks use the same split."""
