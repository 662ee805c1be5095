"""Custom autograd functions: straight-through, gradient reversal, custom_fwd/custom_bwd, gradcheck, double
backward."""

import torch
import torch.nn as nn

torch.manual_seed(8)
device = "cuda"


class Swish(torch.autograd.Function):
    @staticmethod
    def forward(ctx, i):
        ctx.save_for_backward(i)
        return i * torch.sigmoid(i)

    @staticmethod
    def backward(ctx, grad_output):
        (i,) = ctx.saved_tensors
        s = torch.sigmoid(i)
        ones = torch.ones(i.shape, device=i.device)
        return grad_output * (s * (ones + i * (1 - s)))


class Reverse(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, alpha):
        ctx.alpha = alpha
        return x.view_as(x)

    @staticmethod
    def backward(ctx, g):
        return g.neg() * ctx.alpha, None


class Quantise(torch.autograd.Function):
    @staticmethod
    @torch.amp.custom_fwd(device_type="cuda")
    def forward(ctx, x, codes):
        distance = torch.cdist(x, codes)
        index = distance.argmin(1)
        ctx.mark_non_differentiable(index)
        return codes[index], index

    @staticmethod
    @torch.amp.custom_bwd(device_type="cuda")
    def backward(ctx, g, _):
        return g, None


class LinearByHand(torch.autograd.Function):
    @staticmethod
    def forward(input, weight, bias):
        return input.mm(weight.t()) + bias

    @staticmethod
    def setup_context(ctx, inputs, output):
        input, weight, bias = inputs
        ctx.save_for_backward(input, weight)

    @staticmethod
    def backward(ctx, g):
        input, weight = ctx.saved_tensors
        return g.mm(weight), g.t().mm(input), g.sum(0)


layer = nn.Linear(6, 6).to(device)
codes = torch.randn(5, 6, device=device)
x = torch.randn(4, 6, device=device, requires_grad=True)
hidden = Swish.apply(layer(x))
quantised, index = Quantise.apply(hidden, codes)
loss = (quantised * 2).sum() + Reverse.apply(hidden, 0.5).pow(2).sum()
loss = loss + (hidden + (quantised - hidden).detach()).sum()
loss.backward()
print(
    loss.item(),
    index.tolist(),
    x.grad.sum().item(),
    layer.weight.grad.norm().item(),
    x.grad.is_cuda == x.is_cuda,
)
out = LinearByHand.apply(x, layer.weight, layer.bias)
first = torch.autograd.grad(out.pow(2).sum(), [x, layer.weight], create_graph=True)
second = torch.autograd.grad(first[0].sum() + first[1].sum(), x)
print(out.sum().item(), second[0].sum().item())
print(
    torch.autograd.gradcheck(
        LinearByHand.apply,
        [torch.randn(2, 3, dtype=torch.double, device=device, requires_grad=True) for _ in range(2)]
        + [torch.randn(2, dtype=torch.double, device=device, requires_grad=True)],
    )
)
with torch.autograd.detect_anomaly():
    Swish.apply(x).sum().backward()
print(x.grad.sum().item())
hessian = torch.autograd.functional.hessian(lambda v: (v**3).sum(), torch.arange(3.0, device=device))
jacobian = torch.autograd.functional.jacobian(lambda v: v.exp(), torch.ones(2, device=device))
print(hessian.tolist(), jacobian.tolist(), hessian.device == x.device)
