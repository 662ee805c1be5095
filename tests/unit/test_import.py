"""`import legroom` is fast, and `__all__` lists its public names."""

import ast
import gc
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import legroom

pytestmark = pytest.mark.slow

ALLOWED = {"legroom"}
"""Top-level packages outside the standard library that `import legroom` may load."""


def loaded_by(statement: str) -> set[str]:
    """Return the top-level packages outside the standard library that `statement` loads in a new interpreter."""
    program = (
        f"import sys\nbefore = set(sys.modules)\n{statement}\n"
        "print(*{name.partition('.')[0] for name in set(sys.modules) - before})"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    return {name for name in done.stdout.split() if name not in sys.stdlib_module_names}


def test_importing_legroom_loads_only_legroom() -> None:
    assert loaded_by("import legroom") <= ALLOWED


def test_the_check_for_loaded_packages_can_fail() -> None:
    assert not loaded_by("import legroom, rich") <= ALLOWED


def test_the_command_line_does_not_load_torch() -> None:
    loaded = loaded_by("import legroom.cli")
    assert "typer" in loaded
    assert not {"torch", "ray", "textual", "plotly", "libcst"} & loaded


def test_the_process_that_shows_an_estimate_does_not_load_torch() -> None:
    """Only the process that traces the script needs torch. Importing torch takes much longer than showing an
    estimate."""
    assert "torch" not in loaded_by("import legroom.predict.script_estimate, legroom.show.estimate.estimate")


LEAK_MODULES = {
    *(f"legroom.observe.leaks.search.{name}" for name in (
        "holder_source", "reports", "running_calls", "storing_trace", "suspects", "window_search",
    )),
    *(f"legroom.observe.holders.{name}" for name in (
        "autograd_graph", "cycles", "descriptions", "paths", "retained_size", "variables",
    )),
    *(f"legroom.observe.source.{name}" for name in (
        "calls", "files", "names", "passing_calls", "reader", "statements", "storing_lines", "syntax",
    )),
    "legroom.memory.detected_leak",
}  # fmt: skip
"""Modules that explain a leak. Importing them takes as long as the rest of the first call of `legroom.watch`."""
WATCHED_LOOP = """
import sys, torch, legroom
model = torch.nn.Linear(64, 64)
optimizer = torch.optim.Adam(model.parameters())
losses = []
for _ in legroom.watch(range(100), quiet=True, on_leak=lambda leak: None):
    optimizer.zero_grad()
    loss = model(torch.randn(64, 64)).sum()
    loss.backward()
    optimizer.step()
    losses.append({stored})
print(*sys.modules)
"""


@pytest.mark.parametrize(("stored", "expected"), [("loss.item()", set()), ("loss", LEAK_MODULES)])
def test_watch_loads_the_modules_that_explain_a_leak_only_if_there_is_a_leak(
    stored: str, expected: set[str]
) -> None:
    program = WATCHED_LOOP.format(stored=stored)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert LEAK_MODULES & set(done.stdout.split()) == expected


def test_public_names_exist_and_are_listed() -> None:
    for name in legroom.__all__:
        assert getattr(legroom, name) is not None
    assert dir(legroom) == sorted(legroom.__all__)


def test_an_unknown_name_is_an_attribute_error() -> None:
    assert not hasattr(legroom, "no_such_thing")


@pytest.mark.parametrize("enabled", [True, False])
def test_public_names_are_imported_without_garbage_collections(
    enabled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A garbage collection takes longer than the import itself, because it visits all objects of torch."""
    during = []
    monkeypatch.setattr(legroom, "import_module", lambda name: during.append(gc.isenabled()) or gc)
    if not enabled:
        gc.disable()
    try:
        assert legroom.transfer is gc
        assert gc.isenabled() is enabled
    finally:
        gc.enable()
    assert during == [False]


def dataclasses_without_docstring(source: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.ClassDef) or ast.get_docstring(node):
            continue
        if any("dataclass" in ast.unparse(each) for each in node.decorator_list):
            yield node.name


def test_every_dataclass_has_a_docstring() -> None:
    """Without a docstring, `dataclass` computes the signature of the class, which takes 0.25 ms at import."""
    package = Path(legroom.__file__).parent
    assert not [
        (file.name, name)
        for file in package.rglob("*.py")
        for name in dataclasses_without_docstring(file.read_text(encoding="utf-8"))
    ]
    assert list(dataclasses_without_docstring("@dataclass(frozen=True)\nclass Block:\n    size: int")) == [
        "Block"
    ]
