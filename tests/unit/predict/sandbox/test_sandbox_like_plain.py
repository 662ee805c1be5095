"""Random file operations have the same results inside and outside the sandbox. Inside, they change no files of the
user."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

SEQUENCES = 100

DRIVER = """
import errno, json, os, pathlib, random, shutil, sys
from legroom.predict.sandbox import sandbox as module

NAMES = ["a", "b", "d", "d/x", "d/y", "d/e", "d/e/z", "l", "l/x", "new", "new/q", "../other/o", "d/../b"]

def write(path, text):
    with open(path, "w") as file: file.write(text)
def append(path, text):
    with open(path, "a") as file: file.write(text)
def read(path):
    with open(path) as file: return file.read()
def change(path):
    with open(path, "r+") as file: file.write("#")
def create(path):
    with open(path, "x") as file: file.write("x")
def descriptor(path):
    opened = os.open(path, os.O_RDWR | os.O_TRUNC)
    os.write(opened, b"fd"); os.close(opened)
def walk(path):
    return [(folder, sorted(folders), sorted(files)) for folder, folders, files in sorted(os.walk(path))]
def scan(path):
    return sorted((e.name, e.path, e.is_dir(), e.is_file(), e.is_symlink(), e.is_dir(follow_symlinks=False)) for e in os.scandir(path))
def in_folder(path, name):
    folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try: os.unlink(name, dir_fd=folder)
    finally: os.close(folder)
def link_text(path): return os.readlink(path)
def relative(path): return os.path.relpath(os.path.realpath(path), os.path.realpath(START))
def enter(path):
    os.chdir(path); here = os.path.relpath(os.getcwd(), START); os.chdir(START)
    return here

ONE = ("read change create descriptor walk scan link_text relative enter os.remove os.rmdir os.mkdir os.makedirs os.path.exists "
       "os.path.lexists os.path.isdir os.path.isfile os.path.islink os.path.getsize shutil.rmtree").split()
TWO = "os.rename os.rename os.replace os.symlink os.symlink os.link shutil.copyfile shutil.move shutil.copytree".split()

def make(folder):
    shutil.rmtree(folder, ignore_errors=True)
    for path in ("w/d/e", "other"): (folder / path).mkdir(parents=True)
    for path in ("w/a", "w/b", "w/d/x", "w/d/e/z", "other/o"): (folder / path).write_text(path)
    (folder / "w/l").symlink_to("d")
    (folder / "w/d/y").symlink_to("../b")

def state(folder):
    return sorted((str(p.relative_to(folder)), os.readlink(p) if p.is_symlink() else p.read_text() if p.is_file() else "", p.lstat().st_mtime_ns)
                  for p in folder.rglob("*"))

def outcome(function, arguments):
    try:
        return repr(eval(function)(*arguments))
    except shutil.Error as error:
        return "shutil.Error"
    except OSError as error:  # rmtree has another way, with other errors, for systems without directory descriptors
        return "failed" if function == "shutil.rmtree" else errno.errorcode.get(error.errno, str(error))

def plan(seed):
    chance = random.Random(seed)
    steps = []
    for _ in range(chance.randint(3, 14)):
        kind = chance.random()
        if kind < 0.2: steps.append(("write" if kind < 0.12 else "append", (chance.choice(NAMES), str(chance.random()))))
        elif kind < 0.25: steps.append(("in_folder", (chance.choice(NAMES), chance.choice(["x", "z", "q"]))))
        elif kind < 0.55: steps.append((chance.choice(TWO), (chance.choice(NAMES), chance.choice(NAMES))))
        else: steps.append((chance.choice(ONE), (chance.choice(NAMES),)))
    return steps

def run(folder, seed, scratch):
    global START
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.chdir(folder / "w")
            START = os.getcwd()
            if scratch is not None:
                module.forbid_writes_outside = lambda folders: False
                module.Sandbox(scratch)
            found = [(function, arguments, outcome(function, arguments)) for function, arguments in plan(seed)]
            found.append(("walk", ".", repr(walk("."))))
        except BaseException as error:
            found = repr(error)
        os.write(writing, json.dumps(found).encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as pipe: text = pipe.read()
    os.waitpid(child, 0)
    return json.loads(text)

base = pathlib.Path(sys.argv[1])
wrong = []
for seed in range(int(sys.argv[2])):
    make(base / "plain"); make(base / "user")
    scratch = base / "scratch"; shutil.rmtree(scratch, ignore_errors=True); scratch.mkdir()
    before = state(base / "user")
    expected, seen = run(base / "plain", seed, None), run(base / "user", seed, scratch)
    if state(base / "user") != before: wrong.append((seed, "a file changed"))
    if seen != expected: wrong.append((seed, next(((e, s) for e, s in zip(expected, seen) if e != s), seen) if isinstance(seen, list) else seen))
print(json.dumps(wrong))
"""


def test_random_operations_have_the_same_results_as_without_the_sandbox(tmp_path: Path) -> None:
    run = subprocess.run(
        [sys.executable, "-c", DRIVER, str(tmp_path), str(SEQUENCES)],
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert run.returncode == 0, run.stderr
    assert json.loads(run.stdout) == []
