"""A script that Legroom runs in this process behaves as if started by python."""

import os
import pickle
import subprocess
import sys
import textwrap
import zipfile
from pathlib import Path

import pytest

from legroom.errors import UsageError
from legroom.memory.annotations import ExitReason
from legroom.observe.script import Outcome, Script, before_os_exit, execute, installed


def silent(error: BaseException, hooked: bool) -> tuple[str, str]:
    return f"{type(error).__name__}: {error}", ""


def run(script: Script) -> Outcome:
    with installed(script):
        return execute(script, uncaught=silent)


@pytest.fixture
def write(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def write(name: str, text: str | bytes) -> str:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text if isinstance(text, bytes) else textwrap.dedent(text).encode())
        return name

    return write


LOOK = """
import json, sys
module = sys.modules["__main__"]
json.dump({
    "name": __name__, "file": __file__, "argv": sys.argv, "path0": sys.path[0], "package": __package__,
    "spec": __spec__ and __spec__.name, "loader": type(__loader__).__name__, "cached": __cached__ is None,
    "main": module.__dict__ is globals(), "builtins": __builtins__.__name__, "doc": __doc__,
}, open("seen.json", "w"))
"""


def compare_with_python(words: list[str], script: Script) -> None:
    """Check that the program sees the same environment under python and under Legroom."""
    subprocess.run([sys.executable, *words], check=True)
    expected = Path("seen.json").read_text()
    assert run(script) == Outcome(0, ExitReason.FINISHED)
    assert Path("seen.json").read_text() == expected


def test_a_script_sees_the_same_as_under_python(write):
    compare_with_python(
        [write("sub/train.py", LOOK), "--gpu", "--help"], Script("sub/train.py", ("--gpu", "--help"))
    )


def test_a_symlinked_script_sees_the_same_as_under_python(write):
    write("real/train.py", LOOK)
    os.symlink("real/train.py", "link.py")
    compare_with_python(["link.py"], Script("link.py"))


def test_a_module_sees_the_same_as_under_python(write):
    write("package/__init__.py", "")
    write("package/train.py", LOOK)
    compare_with_python(["-m", "package.train", "x"], Script("package.train", ("x",), is_module=True))


def test_a_package_with_main_sees_the_same_as_under_python(write):
    write("pkg_main/__init__.py", "")
    write("pkg_main/__main__.py", LOOK)
    compare_with_python(["-m", "pkg_main"], Script("pkg_main", (), is_module=True))


def test_a_folder_with_main_sees_the_same_as_under_python(write):
    write("folder/__main__.py", LOOK)
    compare_with_python(["folder", "1"], Script("folder", ("1",)))


def test_a_zip_with_main_sees_the_same_as_under_python(write, tmp_path):
    with zipfile.ZipFile(tmp_path / "app.zip", "w") as archive:
        archive.writestr("__main__.py", LOOK)
    compare_with_python(["app.zip", "1"], Script("app.zip", ("1",)))


def test_byte_code_runs(write):
    import py_compile

    py_compile.compile(write("train.py", "raise SystemExit(7)"), cfile="train.pyc")
    assert run(Script("train.pyc")).exit_code == 7


@pytest.mark.parametrize(
    "source",
    [
        b"# -*- coding: latin-1 -*-\nassert len('\xe9') == 1\n",
        b"\xef\xbb\xbfassert len('\xc3\xa9') == 1\n",
        b"import sys\r\nassert sys.argv\r\n",
    ],
    ids=["coding line", "byte order mark", "windows line ends"],
)
def test_the_source_is_decoded_as_by_python(write, source):
    assert run(Script(write("train.py", source))).reason is ExitReason.FINISHED


@pytest.mark.parametrize(
    ("statement", "code"),
    [
        ("", 0),
        ("sys.exit()", 0),
        ("sys.exit(3)", 3),
        ("sys.exit(True)", 1),
        ("sys.exit(-1)", 255),
        ("sys.exit('no')", 1),
    ],
)
def test_the_exit_code_is_that_of_python(write, statement, code):
    assert run(Script(write("train.py", f"import sys\n{statement}"))).exit_code == code


def test_a_string_passed_to_exit_is_printed_to_stderr(write, capsys):
    run(Script(write("train.py", "raise SystemExit('no data')")))
    assert capsys.readouterr().err == "no data\n"


def test_an_uncaught_exception_is_described_and_dropped(write):
    outcome = run(Script(write("train.py", "1 / 0")))
    assert outcome == Outcome(1, ExitReason.RAISED, "ZeroDivisionError: division by zero")


def test_no_frame_of_an_uncaught_exception_survives(write):
    import gc
    import weakref

    class Thing:
        pass

    alive = []
    sys.modules["_thing"] = type(sys)("_thing")
    sys.modules["_thing"].make = lambda: alive.append(weakref.ref(thing := Thing())) or thing
    try:
        run(
            Script(
                write("train.py", "import _thing\ndef step():\n    thing = _thing.make()\n    1 / 0\nstep()")
            )
        )
    finally:
        del sys.modules["_thing"]
    gc.collect()
    assert alive[0]() is None


def test_the_traceback_starts_at_the_script(write):
    frames = []

    def look(error, hooked):
        frames.append(error.__traceback__.tb_frame.f_code.co_filename)
        return "", ""

    script = Script(write("train.py", "1 / 0"))
    with installed(script):
        execute(script, uncaught=look)
    assert frames == [os.path.abspath("train.py")]


def test_a_syntax_error_is_an_error_of_the_script(write):
    outcome = run(Script(write("train.py", "def f(:\n")))
    assert (outcome.exit_code, outcome.reason) == (1, ExitReason.RAISED)


def test_ctrl_c_exits_with_130(write):
    outcome = run(Script(write("train.py", "raise KeyboardInterrupt")))
    assert (outcome.exit_code, outcome.reason) == (130, ExitReason.INTERRUPTED)


def test_the_excepthook_of_the_script_is_called(write, monkeypatch):
    monkeypatch.setattr(sys, "excepthook", sys.__excepthook__)
    source = "import sys\nsys.excepthook = lambda *a: open('hook', 'w').write(a[0].__name__)\n1 / 0"
    hooks = []
    script = Script(write("train.py", source))
    with installed(script):
        execute(script, uncaught=lambda error, hooked: (hooks.append(hooked), ("", ""))[1])
    assert (hooks, Path("hook").read_text()) == ([True], "ZeroDivisionError")


def test_classes_of_the_script_can_be_pickled_while_it_is_installed(write):
    script = Script(
        write("train.py", "import pickle\nclass Config: pass\npickle.dump(Config(), open('c', 'wb'))")
    )
    with installed(script):
        execute(script, uncaught=silent)
        loaded = pickle.loads(Path("c").read_bytes())
        assert type(loaded) is sys.modules["__main__"].Config


def test_argv_path_and_main_are_restored(write):
    before = (sys.argv, list(sys.path), sys.modules["__main__"])
    run(Script(write("train.py", "import sys; sys.argv.append('x'); sys.path.append('y')"), ("a",)))
    assert (sys.argv, list(sys.path), sys.modules["__main__"]) == before


@pytest.mark.parametrize(
    ("name", "is_module", "message"),
    [
        ("missing.py", False, "Script `missing.py` not found. Check the path, or run a module with `-m`."),
        ("train", False, "Script `train` not found. Did you mean `train.py`?"),
        ("empty", False, "`empty` is a folder without a `__main__.py`. Pass the path to a script."),
        (
            "train.ipynb",
            False,
            "`train.ipynb` is a notebook. Convert the notebook with `jupyter nbconvert --to script`",
        ),
        ("no_such_package.train", True, "No module named `no_such_package`"),
        ("a..b", True, "`a..b` is not a module name. Example: `-m package.module`."),
    ],
)
def test_a_script_that_cannot_run_is_rejected_with_one_line(write, name, is_module, message):
    write("train.py", "")
    write("train.ipynb", "{}")
    os.mkdir("empty")
    with pytest.raises(UsageError) as raised:
        Script(name, (), is_module).check()
    assert str(raised.value).startswith(message)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("bare_package", "`bare_package` is a package without a `__main__.py`"),
        ("bare_package.nothing", "No module named `bare_package.nothing`"),
        ("itertools", "`itertools` contains no Python code to run"),
    ],
)
def test_a_module_that_cannot_run_is_rejected(write, name, message):
    write("bare_package/__init__.py", "")
    with pytest.raises(UsageError, match=message):
        run(Script(name, (), is_module=True))


def test_a_usage_error_raised_by_the_script_is_an_error_of_the_script(write):
    source = "from legroom.errors import UsageError\nraise UsageError('mine')"
    assert run(Script(write("train.py", source))).error == "UsageError: mine"


def test_os_exit_calls_the_callback_and_then_exits(tmp_path):
    program = (
        "import os\nfrom legroom.observe.script import before_os_exit\n"
        "with before_os_exit(lambda status: print('closing', status, flush=True)):\n    os._exit(5)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (5, "closing 5\n")


def test_os_exit_is_restored():
    real = os._exit
    with before_os_exit(lambda status: None):
        assert os._exit is not real
    assert os._exit is real


@pytest.mark.parametrize(("name", "stem"), [("a/train.py", "train"), ("folder", "folder")])
def test_the_stem_of_a_script_is_its_file_name(name, stem):
    assert Script(name).stem == stem


def test_the_stem_of_a_module_is_its_last_part():
    assert Script("package.train", (), is_module=True).stem == "train"
