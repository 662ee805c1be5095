"""Where the batch size of a DataLoader comes from."""

import importlib
import sys
from pathlib import Path

import pytest

from legroom.memory.event_base import Frame
from legroom.observe.source.loader_argument import Origin, loader_argument, loop_argument

HELPER = "def make(data, bs=16, *, workers=0):\n    return DataLoader(data, batch_size=bs)\n"


def line_of(origin: Origin) -> int:
    return origin.position[1] if origin.position else 0


@pytest.mark.parametrize(
    ("call", "name", "line"),
    [
        ("DataLoader(data, batch_size=B)", "B", 0),
        ("DataLoader(data, batch_size=config['size'])", "size", 0),
        ("DataLoader(data, batch_size=int(args.bs))", "bs", 0),
        ("DataLoader(data, batch_size=config.get('size', 8))", "size", 0),
        ("DataLoader(data, B)", "B", 0),
        ("DataLoader(data, batch_size=16)", "", 3),
        ("DataLoader(data, batch_size=B // 2)", "", 0),
        ("DataLoader(data, batch_size=max(1, config.bs))", "bs", 0),
        ("DataLoader(data, batch_size=int(max(config['bs'], 1)))", "bs", 0),
        ("DataLoader(data, batch_size=min(64, len(data)))", "", 0),
        ("DataLoader(data, batch_size=max(1, config.bs // gpus))", "", 0),
        ("DataLoader(data, batch_size=max(1, 4))", "", 0),
        ("DataLoader(data, batch_size=len(devices))", "", 0),
        ("DataLoader(data, batch_size=getattr(args, 'bs', 8))", "bs", 0),
        ("DataLoader(data, **options)", "", 0),
        ("DataLoader(*parts, batch_size=16)", "", 3),
        ("wrap(DataLoader(data, batch_size=B), batch_size=16)", "B", 0),
        ("loader_class(data, batch_size=B)", "B", 0),
        ("DataLoader(a, batch_size=B), DataLoader(b, batch_size=B)", "B", 0),
        ("DataLoader(a, batch_sampler=BatchSampler(s, B, True))", "B", 0),
        ("MyBatchSampler(s, batch_size=B)", "B", 0),
    ],
)
def test_argument_of_the_loader(call: str, name: str, line: int, tmp_path: Path) -> None:
    file = tmp_path / "train.py"
    file.write_text(f"\n\nloader = {call}\n")
    found = loader_argument([Frame(str(file), 3, "<module>")])
    assert found is not None
    assert (found.names[-1] if found.names else "", line_of(found)) == (name, line)


@pytest.mark.parametrize(
    ("call", "name", "line"),
    [
        ("make(data, B)", "B", 0),
        ("make(data, bs=config.size)", "size", 0),
        ("make(data, 32)", "", 3),
        ("make(data)", "", 1),
        ("make(*parts)", "", 0),
        ("make(**options)", "", 0),
        ("make(data), make(test)", "", 1),
        ("factory(data, bs=B)", "B", 0),
    ],
)
def test_parameter_is_followed_to_the_caller(call: str, name: str, line: int, tmp_path: Path) -> None:
    file = tmp_path / "train.py"
    file.write_text(f"{HELPER}loader = {call}\n")
    found = loader_argument([Frame(str(file), 2, "make"), Frame(str(file), 3, "<module>")])
    assert found is not None
    assert (found.names[-1] if found.names else "", line_of(found)) == (name, line)


def test_position_of_the_number(tmp_path: Path) -> None:
    file = tmp_path / "train.py"
    file.write_text("loader = DataLoader(data, num_workers=8, batch_size=8)\n")
    assert loader_argument([Frame(str(file), 1, "<module>")]) == Origin(position=(str(file), 1, 52))


def test_keyword_only_parameter(tmp_path: Path) -> None:
    file = tmp_path / "train.py"
    file.write_text(
        "def make(*data, bs=16):\n    return DataLoader(data, batch_size=bs)\nloader = make(B, 32)\n"
    )
    found = loader_argument([Frame(str(file), 2, "make"), Frame(str(file), 3, "<module>")])
    assert found is not None
    assert line_of(found) == 1


def test_default_value_is_not_a_parameter_of_the_caller(tmp_path: Path) -> None:
    file = tmp_path / "train.py"
    file.write_text(
        "def make(data, bs=B):\n    return DataLoader(data, batch_size=bs)\ndef main(B):\n    make(data)\nmain(8)\n"
    )
    frames = [Frame(str(file), 2, "make"), Frame(str(file), 4, "main"), Frame(str(file), 5, "<module>")]
    assert loader_argument(frames) == Origin("B", ("B",))


@pytest.mark.parametrize(
    "call",
    [
        "make(data, 8), make(test, 4)",
        "make(data, 8), make(test, 8)",
        "make(data), make(test, 8)",
        "factory(data, 8)",  # may be another name of `make`
        "DATA['train'](data)",
    ],
)
def test_ambiguous_call(call: str, tmp_path: Path) -> None:
    file = tmp_path / "train.py"
    file.write_text(f"{HELPER}loaders = {call}\n")
    assert loader_argument([Frame(str(file), 2, "make"), Frame(str(file), 3, "<module>")]) is None


def test_constructor_of_a_class_among_other_calls(tmp_path: Path) -> None:
    file = tmp_path / "train.py"
    file.write_text(
        "class Data:\n    def __init__(self, size=16):\n        self.loader = DataLoader(None, batch_size=size)\n"
        "fit(8, Data(24), size=4)\n"
    )
    found = loader_argument([Frame(str(file), 3, "__init__"), Frame(str(file), 4, "<module>")])
    assert found == Origin(position=(str(file), 4, 12))


def test_method_of_a_class(tmp_path: Path) -> None:
    file = tmp_path / "train.py"
    file.write_text(
        "class Data:\n    def __init__(self, size):\n        self.loader = DataLoader(None, batch_size=size)\nData(24)\n"
    )
    found = loader_argument([Frame(str(file), 3, "__init__"), Frame(str(file), 4, "<module>")])
    assert found is not None
    assert line_of(found) == 4


@pytest.mark.parametrize("text", ["", "loader = get()", "x = DataLoader(data)"])
def test_unknown_argument(text: str, tmp_path: Path) -> None:
    file = tmp_path / "train.py"
    file.write_text(text)
    assert loader_argument([Frame(str(file), 1, "<module>")]) is None
    assert loader_argument([]) is None


def test_own_class_of_a_batch_sampler(tmp_path: Path) -> None:
    file = tmp_path / "train.py"
    file.write_text(
        "class Groups(data.BatchSampler):\n    pass\nloader = DataLoader(d, batch_sampler=Groups(s, B))\n"
    )
    assert loader_argument([Frame(str(file), 3, "<module>")]) == Origin("B", ("B",))


@pytest.mark.parametrize(
    ("text", "names", "line"),
    [
        ("size = 16\nDataLoader(data, batch_size=size)", ("size",), 1),
        ("B = args.bs\nDataLoader(data, batch_size=B)", ("B", "bs"), 0),
        ("A = 16\nB = A\nDataLoader(data, batch_size=B)", ("B", "A"), 1),
        ("B = 16\nB *= 2\nDataLoader(data, batch_size=B)", ("B",), 0),
        ("A, B = 8, 16\nDataLoader(data, batch_size=B)", ("B",), 1),
        ("A, B = sizes()\nDataLoader(data, batch_size=B)", ("B",), 0),
        ("for B in sizes:\n    DataLoader(data, batch_size=B)", ("B",), 0),
        ("B = B or 4\nDataLoader(data, batch_size=B)", ("B",), 0),
    ],
)
def test_variable_is_followed_to_its_only_assignment(
    text: str, names: tuple[str, ...], line: int, tmp_path: Path
) -> None:
    file = tmp_path / "train.py"
    file.write_text(text)
    found = loader_argument([Frame(str(file), len(text.split("\n")), "<module>")])
    assert found is not None
    assert (found.names, line_of(found)) == (names, line)


def test_local_variable_of_another_function_is_ignored(tmp_path: Path) -> None:
    file = tmp_path / "train.py"
    file.write_text("B = 16\ndef test():\n    B = 16\ndef main():\n    DataLoader(data, batch_size=B)\n")
    found = loader_argument([Frame(str(file), 5, "main"), Frame(str(file), 7, "<module>")])
    assert found is not None
    assert line_of(found) == 1


def test_default_that_replaces_none(tmp_path: Path) -> None:
    file = tmp_path / "train.py"
    file.write_text("B = 16\ndef make(n=None):\n    n = n or B\n    DataLoader(data, batch_size=n)\nmake()\n")
    found = loader_argument([Frame(str(file), 4, "make"), Frame(str(file), 5, "<module>")])
    assert found is not None
    assert line_of(found) == 1


@pytest.mark.parametrize(
    "statement",
    [
        "import settings\nDataLoader(data, batch_size=settings.B)",
        "import settings as s\nDataLoader(data, batch_size=s.B)",
        "from settings import B\nDataLoader(data, batch_size=B)",
        "from settings import B as size\nDataLoader(data, batch_size=size)",
        "from settings import *\nDataLoader(data, batch_size=B)",
    ],
)
def test_variable_of_another_module(statement: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "settings.py").write_text("\nB = 16\n")
    file = tmp_path / "train.py"
    file.write_text(statement)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "settings", raising=False)
    importlib.import_module("settings")
    found = loader_argument([Frame(str(file), 2, "<module>")])
    monkeypatch.delitem(sys.modules, "settings")
    assert found is not None
    assert found.position == (str(tmp_path / "settings.py"), 2, 4)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("for i in range(0, n, B):\n    model(x[i])", 2),
        ("for i in tqdm(range(0, n, B)):\n    model(x[i])", 2),
        ("for a in x.split(B):\n    model(a)", 2),
        ("for a in torch.split(x, B):\n    model(a)", 2),
        ("for i in range(n // B):\n    model(x[i * B:(i + 1) * B])", 2),
        ("while i < n:\n    model(x[i:i + B])", 2),
        ("for e in epochs:\n    for i in range(0, n, B):\n        model(x[i])", 3),
        ("def batches(x, size):\n    for i in range(0, n, size):\n        yield x[i]\nfor a in batches(x, B):\n    model(a)", 5),
        ("for a in words.split(','):\n    model(x[0:0 + B])", 2),
    ],
)  # fmt: skip
def test_loop_that_splits_the_data(text: str, line: int, tmp_path: Path) -> None:
    file = tmp_path / "train.py"
    file.write_text(f"B = 64\n{text}\n")
    found = loop_argument([Frame(str(file), line + 1, "<module>")], None)
    assert found == Origin("B", ("B",), (str(file), 1, 4), is_loop=True)


@pytest.mark.parametrize(
    "batch",
    [
        "x[torch.randint(n, (B,))]",
        "x[torch.randint(0, n, size=(B,), device=device)]",
        "x[np.random.randint(0, n, B)]",
        "x[rng.integers(0, n, size=B)]",
        "x[np.random.choice(n, B, replace=False)]",
        "random.sample(x, B)",
        "random.choices(x, k=B)",
        "memory.sample(B)",
        "x[torch.randperm(n)[:B]]",
        "x[torch.multinomial(p, B)]",
        "torch.rand(B, 3)",
        "rng.normal(0, 1, (B, 3))",
        "torch.randn(x.shape[0], 9) + x[torch.randint(random.randint(1, 5), [B])]",
        "sampled()",
    ],
)
@pytest.mark.parametrize("start", ["for i in range(9):", "while True:"])
def test_loop_that_samples_random_batches(batch: str, start: str, tmp_path: Path) -> None:
    file = tmp_path / "train.py"
    lines = [
        "B = 64",
        "def sampled():",
        "    return x[torch.randint(n, (B,))]",
        start,
        f"    model({batch})",
        "",
    ]
    file.write_text("\n".join(lines))
    found = loop_argument([Frame(str(file), 5, "<module>")], None)
    assert found == Origin("B", ("B",), (str(file), 1, 4), is_loop=True)


@pytest.mark.parametrize(
    "batch", ["torch.randn(x.size(0), 3)", "torch.rand(len(x))", "x[random.randint(0, 5)]", "p.sample()"]
)
def test_random_numbers_without_the_size_of_a_batch(batch: str, tmp_path: Path) -> None:
    file = tmp_path / "train.py"
    file.write_text(f"for i in range(9):\n    model({batch})\n")
    assert loop_argument([Frame(str(file), 2, "<module>")], None) is None


def test_loop_of_a_function_whose_parameter_is_the_size(tmp_path: Path) -> None:
    file = tmp_path / "train.py"
    file.write_text("def fit(x, mb=64):\n    for i in range(0, 9, mb):\n        model(x)\nfit(x)\n")
    found = loop_argument([Frame(str(file), 3, "fit"), Frame(str(file), 4, "<module>")], None)
    assert found == Origin("", (), (str(file), 1, 14), is_loop=True)


def test_loop_without_a_size(tmp_path: Path) -> None:
    file = tmp_path / "train.py"
    file.write_text("for i in range(9):\n    model(x[i])\n")
    assert loop_argument([Frame(str(file), 2, "<module>")], None) is None


@pytest.mark.parametrize(
    ("loop", "found"), [("i in range(task_num)", True), ("task in batch", True), ("i in x", False)]
)
def test_loop_over_tasks_inside_the_model(loop: str, found: bool, tmp_path: Path) -> None:
    file = tmp_path / "train.py"
    file.write_text(f"def forward(x):\n    for {loop}:\n        net(x)\n    loss.backward()\nmodel(x)\n")
    call = Frame(str(file), 5, "<module>")
    origin = loop_argument([Frame(str(file), 4, "forward"), call], call)
    assert (origin is not None and origin.has_tasks) == found


def test_loop_of_the_model_does_not_split_the_batch(tmp_path: Path) -> None:
    file = tmp_path / "train.py"
    file.write_text("def forward(x):\n    for i in range(0, 9, 3):\n        net(x)\nmodel(x)\n")
    call = Frame(str(file), 4, "<module>")
    assert loop_argument([Frame(str(file), 3, "forward"), call], call) is None
