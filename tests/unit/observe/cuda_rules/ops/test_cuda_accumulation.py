import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from legroom.observe.cuda_rules.ops.accumulation import Accumulation, _dense


class Swapping(TorchDispatchMode):
    """Replaces operations by those that the engine would run without a dispatch mode, and counts the replacements."""

    def __init__(self):
        super().__init__()
        self.accumulation = Accumulation()
        self.swapped = 0
        self.added = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        instead = self.accumulation.instead_of(func, args, kwargs)
        self.swapped += instead is not func
        self.added += func is torch.ops.aten.add.Tensor
        return instead(*args, **(kwargs or {}))


def backward(make_loss, fake=True):
    with FakeTensorMode() if fake else torch.enable_grad():
        loss = make_loss()
        with Swapping() as mode:
            loss.backward()
    return mode


def residual():
    x = torch.ones(4, 8, requires_grad=True)
    h = x * 2
    return ((h + h.sin()) * 3).sum()


def test_the_gradients_of_a_residual_connection_are_added_in_place():
    mode = backward(residual)

    assert mode.swapped == mode.added == 1


def test_a_gradient_that_is_a_view_is_not_added_to():
    def loss():
        h = torch.ones(2, 4, 8, requires_grad=True) * 2
        return (h.view(8, 8).sin() + h.view(8, 8).cos()).sum()

    mode = backward(loss)

    assert (mode.added, mode.swapped) == (1, 0)


def test_a_gradient_whose_memory_is_shared_is_not_added_to():
    assert not _dense(torch.ones(1).expand(4, 8))
    assert not _dense(torch.ones(4, 8)[:, ::2])


def test_a_dense_gradient_in_any_dimension_order_is_added_to():
    assert _dense(torch.ones(4, 8).t())
    assert _dense(torch.ones(2, 3, 4, 4).to(memory_format=torch.channels_last))


def test_additions_of_the_forward_pass_are_unchanged():
    with FakeTensorMode(), Swapping() as mode:
        torch.ones(4, requires_grad=True) + torch.ones(4)

    assert (mode.added, mode.swapped) == (1, 0)


def test_gradients_of_selections_are_written_into_zeros_in_place():
    def selected(pick):
        def loss():
            x = torch.ones(4, 8, requires_grad=True)
            return pick(x * 2).sum()

        return loss

    picks = {
        "max": lambda x: x.max(1).values,
        "gather": lambda x: x.gather(0, torch.tensor([[0, 2]])),
        "index": lambda x: x[torch.tensor([0, 2])],
    }
    swapped = {name: backward(selected(pick)).swapped for name, pick in picks.items()}

    assert swapped == {"max": 1, "gather": 1, "index": 1}


def test_a_scatter_in_a_custom_autograd_function_is_unchanged():
    class Spread(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x[:2]

        @staticmethod
        def backward(ctx, gradient):
            zeros = gradient.new_zeros(4, 8)
            spread = zeros.index_put((torch.tensor([0, 1]),), gradient)
            assert not zeros.any()
            return spread

    backward(lambda: Spread.apply(torch.ones(4, 8, requires_grad=True) * 2).sum(), fake=False)


def test_real_gradients_are_equal_with_and_without_the_rule():
    def gradient(mode):
        x = torch.randn(4, 8, generator=torch.Generator().manual_seed(0), requires_grad=True)
        h = x * 2
        loss = ((h + h.sin() + h.cos()) * 3).sum()
        with mode:
            loss.backward()
        return x.grad

    assert torch.equal(gradient(Swapping()), gradient(torch.enable_grad()))


def test_double_backward_keeps_its_graph():
    x = torch.ones(4, requires_grad=True)
    h = x * 2
    loss = ((h + h.sin()) * 3).sum()
    with Swapping() as mode:
        (gradient,) = torch.autograd.grad(loss, x, create_graph=True)

    assert mode.swapped == 0
    assert gradient.requires_grad


def test_a_formula_with_two_gradients_adds_them_out_of_place():
    def loss():
        h = torch.ones(4, 8, requires_grad=True) * 2
        spread, mean = torch.var_mean(h, 1, keepdim=True)
        return ((h - mean) / spread).sum()

    mode = backward(loss)

    assert (mode.added, mode.swapped) == (2, 1)
