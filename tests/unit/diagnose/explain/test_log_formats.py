"""The format of a log (launcher, logger, terminal, notebook) does not change the explanation."""

import pytest
from log_formats import LOG_FORMATS

from legroom.diagnose.explain.explain import explain

_FRAMES = 'Traceback (most recent call last):\n  File "/home/u/train.py", line 41, in <module>\n    main()\n'
ERRORS = {
    "LG700": f"{_FRAMES}torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 15.77 GiB of which 514.19 MiB is free.",
    "LG701": f"{_FRAMES}RuntimeError: cuDNN error: CUDNN_STATUS_EXECUTION_FAILED",
    "LG702": f"{_FRAMES}numpy.core._exceptions._ArrayMemoryError: Unable to allocate 30.5 GiB for an array with shape (64000, 64000) and data type float64",
    "LG703": f"{_FRAMES}RuntimeError: DataLoader worker (pid 325) is killed by signal: Bus error. It is possible that dataloader's workers are out of shared memory.",
    "LG710": f"{_FRAMES}RuntimeError: CUDA error: device-side assert triggered",
    "LG714": f"{_FRAMES}RuntimeError: mat1 and mat2 shapes cannot be multiplied (64x512 and 256x10)",
    "LG713": f"{_FRAMES}RuntimeError: Expected all tensors to be on the same device, but found at least two devices, cuda:0 and cpu!",
    "LG717": f"{_FRAMES}RuntimeError: Error(s) in loading state_dict for ResNet:\n\tsize mismatch for fc.weight: copying a param with shape torch.Size([1000, 512]) from checkpoint, the shape in current model is torch.Size([10, 512]).",
    "LG770": f"{_FRAMES}RuntimeError: element 0 of tensors does not require grad and does not have a grad_fn",
    "LG783": f"{_FRAMES}FileNotFoundError: [Errno 2] No such file or directory: 'data/train.csv'",
    "LG790": f"{_FRAMES}ModuleNotFoundError: No module named 'flash_attn'",
    "": f"{_FRAMES}KeyError: 'labels'",
}


@pytest.mark.parametrize("name", LOG_FORMATS)
def test_explanation_is_independent_of_the_log_format(name: str) -> None:
    plain = {text: explain(text) for text in ERRORS.values()}
    assert [each.code for each in plain.values()] == list(ERRORS)
    formatted = {text: explain(LOG_FORMATS[name](text)) for text in ERRORS.values()}
    assert {text: (each.kind, each.code) for text, each in formatted.items()} == {
        text: (each.kind, each.code) for text, each in plain.items()
    }
