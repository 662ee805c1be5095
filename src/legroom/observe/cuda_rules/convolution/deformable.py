"""Deformable convolutions of torchvision: the pixels that every weight meets, as columns, for up to 32 pictures at once.

Source: torchvision/csrc/ops/cuda/deform_conv2d_kernel.cu; the backward pass makes them once for each of its two halves.
"""

from legroom.observe.cuda_rules.plan import Call, Give, Output, Plan, Rule, Take

MOST_PICTURES = 32


def _columns(call: Call) -> Take:
    pictures, weight, offset = call.arguments["input"], call.arguments["weight"], call.arguments["offset"]
    batch = pictures.shape[0]
    at_once = next(count for count in range(min(batch, MOST_PICTURES), 0, -1) if batch % count == 0)
    places = at_once * offset.shape[-2] * offset.shape[-1]
    met = pictures.shape[1] * weight.shape[-2] * weight.shape[-1]
    return Take("columns", met * places * pictures.element_size())


def _forward(call: Call) -> Plan | None:
    return Plan([Output(0), _columns(call)]) if call.arguments["input"].shape[0] else None


def _backward(call: Call) -> Plan | None:
    if not call.arguments["input"].shape[0]:
        return None
    columns = _columns(call)
    results = [Output(index) for index in range(len(call.result))]
    return Plan([*results, columns, Give(columns.name), columns])


RULES: dict[str, Rule] = {
    "torchvision::deform_conv2d": _forward,
    "torchvision::_deform_conv2d_backward": _backward,
}
