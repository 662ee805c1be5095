from pathlib import Path

import pytest

from legroom.observe.source.graph_values import may_store_graph


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("losses[k] += loss", True),
        ("with torch.no_grad():\n    losses[k] += loss", False),
        ("with torch.no_grad():\n    total = total + loss", False),
        ("with torch.no_grad():\n    total.add_(loss)", False),
        ("with torch.inference_mode():\n    losses.append(model(x))", False),
        ("with torch.no_grad():\n    out = model(x)\n    outputs.append((x.cpu(), out))", False),
        ("with torch.no_grad():\n    outputs.append((name, loss))", True),
        ("with torch.no_grad(), torch.enable_grad():\n    pass\nlosses.append(loss)", True),
        ("with torch.no_grad():\n    with torch.enable_grad():\n        total += loss", True),
        ("with torch.set_grad_enabled(False):\n    total += loss", False),
        ("@torch.no_grad()\ndef add(self, loss):\n    self.total += loss", False),
        ("@torch.no_grad()\ndef add(self, loss):\n    self.losses.append(loss)", True),
        ("losses.append(loss.detach())", False),
        ("losses.append((step, loss.detach()))", True),
        ("self.hidden = (h.detach(), c)", True),
    ],
)
def test_lines_that_can_store_a_graph_are_recognized(tmp_path: Path, source: str, expected: bool) -> None:
    file = tmp_path / "train.py"
    file.write_text(source)
    assert may_store_graph(str(file), source.count("\n") + 1) is expected
