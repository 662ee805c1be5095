"""Which scripts can use torch."""

import pytest

from legroom.observe.script import Script
from legroom.run.without_torch import may_use_torch


@pytest.mark.parametrize(
    "source",
    [
        "# torch",
        "'''Does not use torch.'''\nimport os, json\nif __name__ == '__main__':\n    print(os.getcwd())",
        "import re\nprint(re.compile('torch'))",
        "from collections import Counter  # torch",
    ],
)
def test_a_script_that_only_mentions_torch_does_not_use_it(tmp_path, source):
    assert not may_use_torch(_script(tmp_path, source))


@pytest.mark.parametrize(
    "source",
    [
        "import torch",
        "def f():\n    from torch import nn",
        "import torchvision.models as models",
        "import helper  # uses torch",
        "from . import torch_helper",
        "__import__('torch')",
        "import importlib; importlib.import_module('torch')",
        "exec('import torch')",
        "import os; os.system('torchrun train.py')",
        "from os import execvp; run = execvp  # torch",
        "import subprocess; subprocess.run(['torchrun'])",
        "import json  # a local module that imports torch",
        "import logging.config  # torch",
    ],
)
def test_a_script_that_may_use_torch_is_recorded(tmp_path, source):
    if "local" in source:
        (tmp_path / "json.py").write_text("import torch")
    assert may_use_torch(_script(tmp_path, source))


def test_a_module_of_a_package_is_found_without_importing_the_package(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "outer" / "inner").mkdir(parents=True)
    (tmp_path / "outer" / "__init__.py").write_text("raise SystemExit")
    (tmp_path / "outer" / "inner" / "main.py").write_text("print(1)")
    script = Script("outer.inner.main", is_module=True)
    assert script.source_files() == [
        str(tmp_path / "outer" / "__init__.py"),
        str(tmp_path / "outer" / "inner" / "main.py"),
    ]
    assert not may_use_torch(script)
    (tmp_path / "outer" / "__init__.py").write_text("import helper")
    assert may_use_torch(script)


def _script(folder, source):
    (folder / "train.py").write_text(source)
    return Script(str(folder / "train.py"))
