"""What the fork server imports before trials are started from it: everything that a trial's process would import anyway.

Nothing here may touch a GPU: a process that has used CUDA cannot be forked.
"""

__all__: list[str] = []
