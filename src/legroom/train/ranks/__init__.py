"""Coordination between ranks. If one rank runs out of memory, all ranks continue with the same smaller micro-batches,
and no rank hangs.
"""
