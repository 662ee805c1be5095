import torch

from legroom.errors import UsageError

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}


def chosen_precision(kind: str, device: torch.device) -> tuple[str, str]:
    """Return the number format (`bf16`, `fp16` or `fp32`) and the reason for the choice. `kind` is a format or
    `auto`."""
    if kind not in (*DTYPES, "auto"):
        raise UsageError(f"'{kind}' is not a valid precision. Use 'bf16', 'fp16', 'fp32' or 'auto'.")
    best, reason = _best(device)
    if kind == "auto":
        return best, reason
    if kind == "bf16" and best == "fp16":
        return (
            kind,
            f"set by the user; {reason.partition(';')[0]}, so bf16 is emulated and slow, and fp16 would be faster",
        )
    return kind, "set by the user"


def default_device() -> torch.device:
    if not torch.accelerator.is_available():
        return torch.device("cpu")
    return torch.accelerator.current_accelerator() or torch.device("cpu")


def _best(device: torch.device) -> tuple[str, str]:
    match device.type:
        case "cuda":
            return _best_for_cuda(device)
        case "xpu":
            return (
                "bf16",
                "Intel GPUs support bfloat16, which has about the same range as float32 and needs no loss scaling",
            )
        case "cpu" if _cpu_has_bfloat16():
            return (
                "bf16",
                "this CPU supports bfloat16, which has about the same range as float32 and needs no loss scaling",
            )
        case "cpu":
            return "fp32", "this CPU has no half-precision instructions"
    return (
        "fp32",
        f"half precision may not be faster or stable on {device.type}; pass 'bf16' or 'fp16' to use it",
    )


def _best_for_cuda(device: torch.device) -> tuple[str, str]:
    name = torch.cuda.get_device_name(device)
    if torch.version.hip is not None:
        return (
            "bf16",
            f"{name} supports bfloat16, which has about the same range as float32 and needs no loss scaling",
        )
    major, minor = torch.cuda.get_device_capability(device)
    capability = f"{name} (compute capability {major}.{minor})"
    if major >= 8:
        return (
            "bf16",
            f"{capability} supports bfloat16, which has about the same range as float32 and needs no loss scaling",
        )
    if major == 7 or (major, minor) in ((6, 0), (5, 3)):
        return (
            "fp16",
            f"{capability} does not support bfloat16; float16 has a small range, so loss scaling is used",
        )
    return "fp32", f"{capability} is slower in half precision than in float32"


def _cpu_has_bfloat16() -> bool:
    """Return True if private torch functions report that the CPU has bfloat16 instructions. If torch lacks these
    private functions, `auto` selects float32 on every CPU.
    """
    checks = [
        getattr(torch.cpu, name, None) for name in ("_is_avx512_bf16_supported", "_is_amx_tile_supported")
    ]
    return any(bool(function()) for function in checks if function is not None)
