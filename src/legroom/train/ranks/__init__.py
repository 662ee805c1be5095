"""Coordination between ranks: if one runs out of memory, no rank hangs and all use the same split."""
