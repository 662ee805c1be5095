"""Functions of a batch that run in micro-batches if memory is insufficient."""

import pytest
import torch
from tests.unit.train.guarded import guarded, small_batch, small_model

from legroom import VirtualGPU


def test_results_are_concatenated_in_order():
    plain = small_model(width=512)
    x, _ = small_batch(batch_size=8_000, device="cpu")
    with VirtualGPU("24MiB"):
        model = small_model(width=512).cuda()
        sizes = []

        def predict(x):
            sizes.append(len(x))
            out = model(x)
            return {"scores": out, "classes": out.argmax(1), "mean": out.mean()}

        result = guarded(model).evaluate(predict, x.cuda())
        assert len(sizes) > 2
        with torch.no_grad():
            expected = plain(x)
        torch.testing.assert_close(result["scores"].cpu(), expected)
        assert torch.equal(result["classes"].cpu(), expected.argmax(1))
        torch.testing.assert_close(result["mean"].cpu(), expected.mean())
        assert not result["scores"].requires_grad


def test_evaluation_has_separate_micro_batch_sizes():
    with VirtualGPU("24MiB"):
        model = small_model(width=512).cuda()
        guard = guarded(model)
        guard.evaluate(lambda x: model(x), small_batch(batch_size=8_000)[0])
        assert guard.sizer.choice is None


def test_a_sample_that_does_not_fit_is_evaluated_on_the_cpu():
    plain = small_model(width=512)
    x = torch.randn(3, 6_000, 6)
    with VirtualGPU("8MiB"):
        model = small_model(width=512).cuda()
        parameters = list(model.parameters())
        result = guarded(model).evaluate(lambda x: model(x), x.cuda())
        with torch.no_grad():
            torch.testing.assert_close(result.cpu(), plain(x))
        assert all(now is before for now, before in zip(model.parameters(), parameters, strict=True))
        assert {parameter.device.type for parameter in model.parameters()} == {"cuda"}


def test_a_decorated_function_runs_in_micro_batches_with_gradients():
    with VirtualGPU("1GiB") as gpu:
        model = small_model().cuda()
        guard = guarded(model)
        sizes = []

        @guard.batched
        def embed(x):
            """Embed."""
            sizes.append(len(x))
            return model(x)

        assert embed.__doc__ == "Embed."
        x, _ = small_batch()
        expected = model(x)
        gpu.fail_allocation(2)
        result = embed(x)
        assert sizes[0] == 10
        assert sum(sizes[1:]) == 10
        assert result.requires_grad
        torch.testing.assert_close(result, expected)


def test_a_decorated_function_raises_torchs_error_if_a_single_sample_does_not_fit():
    with VirtualGPU("8MiB"):
        model = small_model(width=512).cuda()
        embed = guarded(model).batched(lambda x: model(x))
        with pytest.raises(torch.OutOfMemoryError, match="CUDA out of memory"):
            embed(torch.randn(2, 6_000, 6).cuda())


def test_other_errors_are_raised_unchanged():
    model = small_model()
    with pytest.raises(ZeroDivisionError):
        guarded(model).evaluate(lambda x: 1 / 0, small_batch(device="cpu")[0])
