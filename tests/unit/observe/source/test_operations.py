"""Recognizing operations by the source of their lines."""

from pathlib import Path

import pytest

from legroom.memory.event_base import Frame
from legroom.observe.source.operations import attention_at

FUNCTION = """
def forward(self, h, mask):
{body}
"""


@pytest.mark.parametrize(
    ("body", "found"),
    [
        ("scores = q @ k.transpose(-2, -1)\nreturn F.softmax(scores / 8, -1) @ v", True),
        ("k = k.permute(0, 2, 1)\na = torch.bmm(q, k)\na = a.masked_fill(mask, -1e9)\nreturn torch.bmm(a.softmax(-1), v)", True),
        ("e = torch.einsum('bqd,bkd->bqk', q, k)\nreturn torch.einsum('bqk,bkd->bqd', self.softmax(e), v)", True),
        ("e = q @ k.mT\ne *= self.scale\nw = torch.softmax(e, -1)\nreturn w.matmul(v)", True),
        # additive scores of graph attention
        ("wh = torch.mm(h, self.w)\ne = self.scores(wh)\na = F.softmax(torch.where(mask, e, -9e15), 1)\nreturn torch.matmul(a, wh)", False),
        ("w1 = h @ self.a\nw2 = h @ self.b\ne = F.leaky_relu(w1 + w2.T)\nreturn F.softmax(e, 1) @ h", False),
        ("return F.softmax(self.out(h @ self.w @ self.u), -1)", False),
    ],
)  # fmt: skip
def test_attention_is_a_softmax_of_products_with_transposed_keys(
    tmp_path: Path, body: str, found: bool
) -> None:
    file = tmp_path / "model.py"
    file.write_text(FUNCTION.format(body="\n".join(f"    {line}" for line in body.split("\n"))))
    assert (attention_at(Frame(str(file), 4, "forward")) is not None) is found
