"""Which number format a device computes well in, and why."""

import torch

from legroom.errors import UsageError

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}


def chosen_precision(kind: str, device: torch.device) -> tuple[str, str]:
    """`bf16`, `fp16` or `fp32` for `kind` (one of those, or `auto`), and the reason in a sentence."""
    if kind not in (*DTYPES, "auto"):
        raise UsageError(f"'{kind}' is no precision: write bf16, fp16, fp32 or auto")
    best, reason = _best(device)
    if kind == "auto":
        return best, reason
    if kind == "bf16" and best == "fp16":
        return (
            kind,
            f"asked for; {reason.partition(';')[0]}, so it is emulated and slow: fp16 would be faster",
        )
    return kind, "asked for"


def device_at_hand() -> torch.device:
    """The accelerator that torch would use here, or the CPU."""
    if not torch.accelerator.is_available():
        return torch.device("cpu")
    return torch.accelerator.current_accelerator() or torch.device("cpu")


def _best(device: torch.device) -> tuple[str, str]:
    match device.type:
        case "cuda":
            return _best_of_cuda(device)
        case "xpu":
            return "bf16", "Intel's GPUs compute bfloat16; its range is float32's, so nothing needs scaling"
        case "cpu" if _cpu_has_bfloat16():
            return (
                "bf16",
                "this CPU has bfloat16 instructions; its range is float32's, so nothing needs scaling",
            )
        case "cpu":
            return "fp32", "this CPU has no instructions for half precision"
    return "fp32", f"half precision is not sure to be faster or safe on {device.type}: ask for it by name"


def _best_of_cuda(device: torch.device) -> tuple[str, str]:
    name = torch.cuda.get_device_name(device)
    if torch.version.hip is not None:
        return "bf16", f"{name} computes bfloat16; its range is float32's, so nothing needs scaling"
    major, minor = torch.cuda.get_device_capability(device)
    capability = f"{name} (compute capability {major}.{minor})"
    if major >= 8:
        return "bf16", f"{capability} computes bfloat16; its range is float32's, so nothing needs scaling"
    if major == 7 or (major, minor) in ((6, 0), (5, 3)):
        return "fp16", f"{capability} has no bfloat16; float16 overflows early, so the loss is scaled"
    return "fp32", f"{capability} computes half precision slower than float32"


def _cpu_has_bfloat16() -> bool:
    """Asks torch's private functions; without them the answer is no, and `auto` means float32 on every CPU."""
    asked = [
        getattr(torch.cpu, name, None) for name in ("_is_avx512_bf16_supported", "_is_amx_tile_supported")
    ]
    return any(bool(function()) for function in asked if function is not None)
