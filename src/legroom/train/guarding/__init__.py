"""The guarded step: everything is put back when memory runs out, and the batch goes on in pieces."""
