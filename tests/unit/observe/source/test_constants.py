"""Named integers in Python source code and configuration files."""

import pytest

from legroom.observe.source.constants import constants_in_config, constants_in_python


@pytest.mark.parametrize(
    ("source", "found"),
    [
        (
            'config = {\n    "lr": 0.1,\n    "batch_size": 8,\n}',
            [("config.batch_size", 3, '"batch_size": N')],
        ),
        ('config = {"train": {"batch_size": 8}}', [("config.train.batch_size", 1, '"batch_size": N')]),
        ("config = dict(batch_size=8)", [("config.batch_size", 1, "batch_size=N")]),
        ("config = SimpleNamespace(\n    batch_size=8)", [("config.batch_size", 2, "batch_size=N")]),
        ("class Config:\n    batch_size = 8", [("Config.batch_size", 2, "batch_size = N")]),
        ("class Config:\n    batch_size: int = 8", [("Config.batch_size", 2, "batch_size: int = N")]),
        (
            "class Config:\n    batch_size: int = field(default=8)",
            [
                ("Config.batch_size", 2, "batch_size: int = field(default=N)"),
                ("Config.default", 2, "default=N"),
            ],
        ),
        ("config.batch_size = 8", [("batch_size", 1, "config.batch_size = N")]),
        ('config["batch_size"] = 8', [("batch_size", 1, 'config["batch_size"] = N')]),
        ("batch_size, lr = 8, 0.1", [("batch_size", 1, "batch_size, lr = N, 0.1")]),
        ("def train(data, lr=0.1, *, bs=8): pass", [("train.bs", 1, "bs=N")]),
        ("def train(batch_size: int = 8): pass", [("train.batch_size", 1, "batch_size: int = N")]),
        ("val = DataLoader(data, 8)", [("val.batch_size", 1, "DataLoader(data, N)")]),
        ("size = 'ä', 1; batch_size = 8", [("batch_size", 1, "batch_size = N")]),
        ('"""batch_size = 8"""  # batch_size = 8', []),
        ("batch_size = 8.5; n = -8; x = True", []),
        ("batch_size = 8 if", []),
    ],
)
def test_constants_in_python(source: str, found: list[tuple[str, int, str]]) -> None:
    constants = list(constants_in_python(source, "N", is_script=True))
    assert [(each.path, each.line, each.text) for each in constants] == found
    assert {source[each.begin : each.end] for each in constants} <= {"8"}


@pytest.mark.parametrize(
    "before",
    ["\f\n", "\n\f", "# a\x85b\n", "# \u2028\n", "'\x1c\x1d\x1e'\n", "'ä\x85'; ", "'ä'\r\n", "# \f\r"],
)
def test_lines_are_counted_as_in_an_editor(before: str) -> None:
    source = f"{before}size = 8\nbs = 4\n"
    found = list(constants_in_python(source, "N", is_script=True))
    last = 2 + ("\n" in before or "\r" in before)
    assert [(each.name, each.line) for each in found] == [("size", last - 1), ("bs", last)]
    assert [source[: each.begin] + "N" + source[each.end :] for each in found] == [
        f"{before}size = N\nbs = 4\n",
        f"{before}size = 8\nbs = N\n",
    ]
    configured = constants_in_config(source.replace(" =", ":"), "N")
    assert {"bs": last}.items() <= {each.name: each.line for each in configured}.items()


def test_main_block_of_an_imported_module_does_not_run() -> None:
    source = 'if __name__ == "__main__":\n    batch_size = 8\nelse:\n    bs = 4\n'
    assert [each.name for each in constants_in_python(source, "N", is_script=False)] == ["bs"]
    assert [each.name for each in constants_in_python(source, "N", is_script=True)] == ["batch_size", "bs"]


def test_code_that_runs_only_in_an_imported_module_counts() -> None:
    source = "if __name__ != '__main__':\n    batch_size = 8\n"
    assert [each.name for each in constants_in_python(source, "N", is_script=False)] == ["batch_size"]


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("train:\n  batch_size: 8\nval:\n  batch_size: 4\nseed: 1", ["train.batch_size", "val.batch_size", "seed"]),
        ('{\n  "train": {\n    "bs": 8\n  },\n  "seed": 1\n}', ["train.bs", "seed"]),
        ("[train]\nbatch_size = 8 # batch_size = 4\n[val]\nbatch_size = 2", ["train.batch_size", "val.batch_size"]),
        ("train: {bs: 8}\nval: {bs: 4, in: {n: 2}}\nseed: 1", ["train.bs", "val.bs", "val.in.n", "seed"]),
        ("val:\n- loader:\n    bs: 8\n  n: 1\n- bs: 2\nseed: 1", ["val.loader.bs", "val.n", "val.bs", "seed"]),
        ("val:\n  - name: a\n    bs: 8\n  -\n    bs: 4\nbs: 2", ["val.bs", "val.bs", "bs"]),
        ("val: &v\n  bs: 8\ntest: !!map &t # c\n  bs: &b 4\nbs: 2", ["val.bs", "test.bs", "bs"]),
        ("val: &v {bs: 8}\nval data:\n  bs: 4", ["val.bs", "val data.bs"]),
        ("val:\n\n# comment\n  {bs: 8}\nbs: 2", ["val.bs", "bs"]),
        ("path: ${val}\ncolor: '#fff{'\nurl: a#b bs: 3\nbs: 2", ["bs"]),
        ("val: |\n  bs: 8\n  {\nbs: 2", ["bs"]),
        ("val: [\n  {bs: 8},\n  # bs: 4\n  {bs: 2}\n]\nbs: 1", ["val.bs", "val.bs", "bs"]),
        ('{"color": "#f", "train": {"bs": 8}, "val": {"bs": 4}, "n": 1}', ["train.bs", "val.bs", "n"]),
        ('{\n"val":\n{\n"bs": 8\n},\n// "bs": 4\n"names": [\n["val"]\n],\n"bs": 2}', ["val.bs", "bs"]),
        ("[test] ; comment\nbs=8\n[[val]] # comment\nbs = 4 ; n = 1\n[train]\nbs=2", ["test.bs", "val.bs", "train.bs"]),
        ("[tool.x]\nval = { bs = 8 }\nval.n = 4\nbs = 2", ["tool.x.val.bs", "tool.x.val.n", "tool.x.bs"]),
        ("sizes = [\n  [1, 2],\n]\n[val]\nbs = 2", ["val.bs"]),
        ("format = [^{]+\n[train]\nbs = 2", ["train.bs"]),
    ],
)  # fmt: skip
def test_constants_in_configuration_files(source: str, found: list[str]) -> None:
    constants = list(constants_in_config(source, "N"))
    assert [each.path for each in constants] == found
    assert [source[each.begin : each.end] for each in constants] == [str(each.value) for each in constants]
