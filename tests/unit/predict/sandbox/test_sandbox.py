"""A script in the sandbox reads the files that it wrote, and the user's files do not change."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

pytestmark = pytest.mark.slow

DRIVER = """
import json, os, pathlib, shutil, sys
from legroom.predict.sandbox import sandbox as module

for name, project, program, enforce in json.load(sys.stdin):
    child = os.fork()
    if child == 0:
        out = os.open(f"{project}.out", os.O_CREAT | os.O_WRONLY)
        os.dup2(out, 1)
        os.dup2(out, 2)
        os.chdir(project)
        if not enforce:
            module.forbid_writes_outside = lambda folders: False
        scratch = pathlib.Path(f"{project}.scratch")
        scratch.mkdir()
        try:
            exec(program, {"sandbox": module.Sandbox(scratch), "os": os, "sys": sys, "shutil": shutil, "pathlib": pathlib})
        finally:
            sys.stdout.flush()
            sys.excepthook(*sys.exc_info()) if sys.exc_info()[0] else None
            os._exit(0)
    os.waitpid(child, 0)
"""


def make_project(folder: Path) -> Path:
    """Create a project folder with files of several kinds."""
    (folder / "runs" / "old").mkdir(parents=True)
    (folder / "log.csv").write_text("step,loss\n")
    (folder / "best.pt").write_bytes(b"weights" * 100)
    (folder / "runs" / "old" / "events").write_text("events")
    (folder / "link").symlink_to("log.csv")
    torch.save({"weight": torch.arange(1000)}, folder / "real.pt")
    torch.save(torch.arange(10), folder / "old.pt", _use_new_zipfile_serialization=False)
    return folder


def snapshot(folder: Path) -> dict[str, tuple[str, int]]:
    """Return the content (or link target) and the modification time of every path below `folder`."""
    found = {}
    for path in sorted(folder.rglob("*")):
        state = path.lstat()
        content = (
            os.readlink(path) if path.is_symlink() else path.read_bytes().hex() if path.is_file() else ""
        )
        found[str(path.relative_to(folder))] = (content, state.st_mtime_ns)
    return found


WRITES = {
    "append": ("open('log.csv', 'a').write('1,0.5\\n'); print(open('log.csv').read().split())", "['step,loss', '1,0.5']"),
    "overwrite": ("open('best.pt', 'wb').write(b'new'); print(os.path.getsize('best.pt'))", "3"),
    "truncate": ("open('best.pt', 'w').close(); print(os.stat('best.pt').st_size)", "0"),
    "change in place": ("f = open('best.pt', 'r+b'); f.write(b'W'); f.close(); print(open('best.pt', 'rb').read(4))", "b'Weig'"),
    "exclusive": ("open('new', 'x').close()\ntry: open('new', 'x')\nexcept FileExistsError as e: print(e.filename)", "new"),
    "exclusive existing": ("try: open('log.csv', 'x')\nexcept FileExistsError: print('exists')", "exists"),
    "missing folder": ("try: open('no/such/file', 'w')\nexcept FileNotFoundError as e: print(e.filename)", "no/such/file"),
    "folder as file": ("try: open('runs', 'w')\nexcept IsADirectoryError as e: print(e.filename)", "runs"),
    "pathlib": ("p = pathlib.Path('a.txt'); p.write_text('hi'); print(p.exists(), p.read_text(), p.stat().st_size)", "True hi 2"),
    "descriptor": ("d = os.open('log.csv', os.O_WRONLY | os.O_APPEND); os.write(d, b'x'); os.close(d); print(open('log.csv').read()[-1])", "x"),
    "make folders": ("os.makedirs('out/a/b'); open('out/a/b/c', 'w').write('1'); print(os.listdir('out/a'), sorted(os.listdir('.')))",
                     "['b'] ['best.pt', 'link', 'log.csv', 'old.pt', 'out', 'real.pt', 'runs']"),
    "make folder again": ("os.makedirs('runs', exist_ok=True)\ntry: os.mkdir('runs')\nexcept FileExistsError: print('exists')", "exists"),
    "remove": ("os.remove('log.csv'); print(os.path.exists('log.csv'), 'log.csv' in os.listdir())", "False False"),
    "remove and write": ("os.remove('log.csv'); open('log.csv', 'a').write('x'); print(open('log.csv').read())", "x"),
    "remove twice": ("os.remove('log.csv')\ntry: os.remove('log.csv')\nexcept FileNotFoundError as e: print(e.filename)", "log.csv"),
    "remove new": ("open('n', 'w').close(); os.remove('n'); print(os.path.exists('n'))", "False"),
    "remove tree": ("shutil.rmtree('runs'); print(os.path.exists('runs/old/events'), os.path.isdir('runs'))", "False False"),
    "tree again": ("shutil.rmtree('runs'); os.makedirs('runs'); print(os.listdir('runs'))", "[]"),
    "rmdir not empty": ("try: os.rmdir('runs')\nexcept OSError as e: print(e.errno == 39 or e.errno == 66)", "True"),
    "rename": ("os.rename('best.pt', 'last.pt'); print(os.path.exists('best.pt'), os.path.getsize('last.pt'))", "False 700"),
    "replace with new": ("open('t', 'w').write('1'); os.replace('t', 'best.pt'); print(open('best.pt').read(), os.path.exists('t'))", "1 False"),
    "rename folder": ("os.rename('runs', 'kept'); print(open('kept/old/events').read(), os.path.exists('runs'), os.listdir('kept'))", "events False ['old']"),
    "rename then write": ("os.rename('best.pt', 'b'); open('b', 'ab').write(b'!'); print(os.path.getsize('b'))", "701"),
    "rename written folder": ("os.mkdir('n'); open('n/a', 'w').write('1'); os.rename('n', 'm'); print(os.listdir('m'), os.path.exists('n'))", "['a'] False"),
    "swap": ("os.rename('log.csv', 't'); os.rename('best.pt', 'log.csv'); os.rename('t', 'best.pt'); print(os.path.getsize('log.csv'), open('best.pt').read(4))", "700 step"),
    "move": ("shutil.move('log.csv', 'runs/log.csv'); print(sorted(os.listdir('runs')))", "['log.csv', 'old']"),
    "copy": ("shutil.copy2('log.csv', 'copy.csv'); shutil.copytree('runs', 'runs2'); print(open('copy.csv').read(4), os.listdir('runs2'))", "step ['old']"),
    "through a link": ("open('link', 'a').write('x'); print(open('link').read()[-1])", "x"),
    "symlink": ("os.symlink('best.pt', 'newest'); print(os.path.getsize('newest'), os.path.islink('newest'))", "700 True"),
    "walk": ("open('runs/old/new', 'w').close(); print([sorted(f) for _, _, f in os.walk('runs')])", "[[], ['events', 'new']]"),
    "glob": ("import glob; open('b.csv', 'w').close(); print(sorted(glob.glob('*.csv')), sorted(p.name for p in pathlib.Path('.').glob('*.csv')))", "['b.csv', 'log.csv'] ['b.csv', 'log.csv']"),
    "scandir": ("open('runs/x', 'w').close(); print(sorted((e.path, e.is_dir()) for e in os.scandir('runs')))", "[('runs/old', True), ('runs/x', False)]"),
    "change folder": ("os.mkdir('w'); os.chdir('w'); open('f', 'w').write('1'); print(os.path.basename(os.getcwd()), os.listdir('.'), os.path.exists('../log.csv'))", "w ['f'] True"),
    "modes and times": ("os.chmod('log.csv', 0o600); os.utime('log.csv', (1, 1)); print(int(os.path.getmtime('log.csv')))", "1"),
    "temporary files": ("import tempfile; f = tempfile.NamedTemporaryFile(dir='.'); f.write(b'1'); f.flush(); print(os.path.exists(f.name))", "True"),
    "sqlite": ("import sqlite3; c = sqlite3.connect('s.db'); c.execute('create table t (a)'); c.commit(); print(os.path.exists('s.db'))", "True"),
    "numpy": ("import numpy; numpy.save('a.npy', numpy.ones(3)); print(numpy.load('a.npy').sum())", "3.0"),
    "memory map": ("import numpy; m = numpy.memmap('m', dtype='u1', mode='w+', shape=4); m[:] = 7; m.flush(); print(open('m', 'rb').read())", "b'\\x07\\x07\\x07\\x07'"),
    "pickle": ("import pickle; pickle.dump(1, open('p', 'wb')); print(pickle.load(open('p', 'rb')))", "1"),
    "log file": ("import logging; logging.basicConfig(filename='l.log', level=20); logging.info('hi'); print(open('l.log').read().strip())", "INFO:root:hi"),
    "zip": ("import zipfile; z = zipfile.ZipFile('z', 'w'); z.writestr('a', '1'); z.close(); print(zipfile.ZipFile('z').namelist())", "['a']"),
    "fork": ("p = os.fork()\nif p == 0:\n  open('log.csv', 'w').write('child'); os._exit(0)\nos.waitpid(p, 0); print(open('log.csv').read())", "child"),
    "absolute path": ("p = os.path.abspath('best.pt'); os.remove(p); print(os.path.exists('best.pt'))", "False"),
    "bytes path": ("os.remove(b'best.pt'); print(b'best.pt' in os.listdir(b'.'))", "False"),
}  # fmt: skip


ESCAPES = {
    "temporary file replaces": ("import tempfile; f = tempfile.NamedTemporaryFile(delete=False); f.write(b'new'); f.close(); os.replace(f.name, 'best.pt'); print(open('best.pt').read())", "new"),
    "temporary file moves": ("import tempfile; f = tempfile.NamedTemporaryFile(delete=False); f.write(b'new'); f.close(); shutil.move(f.name, 'log.csv'); print(open('log.csv').read(), os.path.exists(f.name))", "new False"),
    "temporary folder moves": ("import tempfile; d = tempfile.mkdtemp(); open(d + '/a', 'w').close(); shutil.move(d, 'moved'); print(os.listdir('moved'))", "['a']"),
    "temporary file linked": ("import tempfile; f = tempfile.NamedTemporaryFile(); os.link(f.name, 'linked'); print(os.path.exists('linked'))", "True"),
    "through a new link": ("os.symlink('best.pt', 'newest'); open('newest', 'w').write('x'); print(open('best.pt').read(), os.path.islink('newest'))", "x True"),
    "through a link to a folder": ("os.symlink('runs', 'latest'); open('latest/a', 'w').write('x'); os.remove('latest/old/events'); print(sorted(os.listdir('runs')), os.listdir('latest/old'))", "['a', 'old'] []"),
    "through the user's link": ("open('link', 'a').write('x'); print(open('log.csv').read()[-1])", "x"),
    "link to a new folder": ("os.mkdir('r1'); os.symlink('r1', 'latest'); open('latest/a', 'w').close(); os.remove('latest'); os.symlink('runs', 'latest'); print(os.listdir('r1'), os.listdir('latest'), os.readlink('latest'))", "['a'] ['old'] runs"),
    "link loop": ("os.symlink('b', 'a'); os.symlink('a', 'b')\ntry: open('a', 'w')\nexcept OSError as e: print(e.errno == 40 or e.errno == 62)", "True"),
    "folder descriptor": ("d = os.open('.', os.O_RDONLY); os.close(os.open('best.pt', os.O_WRONLY | os.O_TRUNC, dir_fd=d)); os.unlink('log.csv', dir_fd=d); os.mkdir('n', dir_fd=d); os.rename('link', 'l', src_dir_fd=d, dst_dir_fd=d); print(os.path.getsize('best.pt'), os.path.exists('log.csv'), os.path.isdir('n'), os.path.lexists('l'))", "0 False True True"),
    "sqlite by URI": ("import sqlite3; c = sqlite3.connect('file:log.csv?mode=rwc', uri=True); c.close(); c = sqlite3.connect('file:n.db?mode=rwc', uri=True); c.execute('create table t (a)'); c.commit(); print(os.path.exists('n.db'))", "True"),
    "sqlite by URI, by position": ("import sqlite3; c = sqlite3.connect('file:n.db?mode=rwc', 5.0, 0, None, True, sqlite3.Connection, 128, True); c.execute('create table t (a)'); print(os.path.exists('n.db'), os.path.exists('file:n.db?mode=rwc'))", "True False"),
    "remove in a moved folder": ("os.rename('runs', 'kept'); os.remove('kept/old/events'); print(os.listdir('kept/old'))", "[]"),
    "file in place of a folder": ("shutil.rmtree('runs'); open('runs', 'w').close(); print(os.path.exists('runs/old/events'))", "False"),
    "folder moved to a removed one": ("shutil.copytree('runs', 'new'); shutil.rmtree('runs'); os.rename('new', 'runs'); print(open('runs/old/events').read())", "events"),
    "user's folder moved to a removed one": ("os.makedirs('a/old'); os.rmdir('a/old'); shutil.rmtree('a'); os.rename('runs', 'a'); print(os.listdir('a'))", "['old']"),
    "rename over a full folder": ("os.mkdir('n')\ntry: os.rename('n', 'runs')\nexcept OSError as e: print(e.errno in (39, 66), e.filename, e.filename2)", "True n runs"),
    "moved to temporary folder": ("import tempfile; d = tempfile.mkdtemp(); shutil.move('runs', d); os.rename('log.csv', d + '/l'); print(os.listdir(d + '/runs/old'), os.path.exists('runs'), os.path.exists(d + '/l'))", "['events'] False True"),
    "link in a temporary folder": ("import tempfile; p = tempfile.mkdtemp() + '/link'; os.symlink(os.path.abspath('best.pt'), p); open(p, 'w').write('x'); os.chmod(p, 0o600); print(open('best.pt').read())", "x"),
    "unnamed temporary file": ("import tempfile; f = tempfile.TemporaryFile(dir='runs'); f.write(b'x'); f.seek(0); print(f.read())", "b'x'"),
    "change folder by descriptor": ("os.mkdir('w'); d = os.open('w', os.O_RDONLY); os.fchdir(d); open('f', 'w').close(); print(os.listdir(d), os.path.basename(os.getcwd()))", "['f'] w"),
    "walk by descriptor": ("open('runs/old/new', 'w').close(); print([sorted(f) for _, _, f, _ in os.fwalk('runs')])", "[[], ['events', 'new']]"),
    "real path": ("os.symlink('runs', 'latest'); print(os.path.relpath(os.path.realpath('latest/old'), os.path.realpath('.')), sorted(e.path for e in os.scandir('latest')))", "runs/old ['latest/old']"),
    "not following": ("os.utime('link', (1, 1), follow_symlinks=False); os.remove('link'); print(os.path.exists('log.csv'), os.path.lexists('link'))", "True False"),
    "sqlite with a journal": ("import sqlite3; c = sqlite3.connect('s.db'); c.execute('pragma journal_mode=wal'); c.execute('create table t (a)'); c.commit(); d = sqlite3.connect('file:s.db?mode=ro', uri=True); print(d.execute('select count(*) from t').fetchone())", "(0,)"),
    "spawned process": ("import multiprocessing; p = multiprocessing.get_context('spawn').Process(target=pathlib.Path('log.csv').write_text, args=('child',)); p.start(); p.join(); print(open('log.csv').read())", "child"),
    "link over an existing file": ("try: os.symlink('log.csv', 'best.pt')\nexcept FileExistsError as e: print(e.filename, e.filename2)", "log.csv best.pt"),
}  # fmt: skip

REFUSED_CHANGES = {
    "refused FileIO": "import _io\ntry: _io.FileIO('log.csv', 'w')\nexcept PermissionError as error: print(error)",
    "refused posix": "import posix\ntry: posix.remove('log.csv')\nexcept PermissionError as error: print(error)",
    "refused open": "import posix\ntry: posix.open('log.csv', os.O_WRONLY)\nexcept PermissionError as error: print(error)",
    "refused current folder": "try: open('/proc/self/cwd/log.csv', 'w')\nexcept PermissionError as error: print(error)",
    "refused descriptor": "d = os.open('log.csv', os.O_RDONLY)\ntry: os.chmod(d, 0)\nexcept PermissionError as error: print(error)",
    "refused chmod": "import posix\ntry: posix.chmod('log.csv', 0)\nexcept PermissionError as error: print(error)",
}

NOT_PYTHON = {
    "os.system": "os.system('echo x >> log.csv; rm -f best.pt; touch made')",
    "subprocess": "import subprocess; subprocess.run(['rm', '-rf', 'runs'])",
    "another python": "import subprocess; subprocess.run([sys.executable, '-c', 'open(\"log.csv\", \"w\")'])",
    "C library": "import ctypes; c = ctypes.CDLL(None); c.unlink(b'best.pt'); c.truncate(b'log.csv', 0); c.rename(b'runs', b'r')",
    "FileIO": "import _io\ntry: _io.FileIO('log.csv', 'w')\nexcept PermissionError: pass",
    "posix": "import posix\ntry: posix.remove('log.csv')\nexcept PermissionError: pass",
    "thread": "import threading; t = threading.Thread(target=os.system, args=('rm log.csv',)); t.start(); t.join()",
}  # fmt: skip

FORKS = """
open("log.csv", "w").write("common ")
for number in range(2):
    child = os.fork()
    if child == 0:
        sandbox.continue_in_fork()
        open("log.csv", "a").write(str(number))
        print(open("log.csv").read(), flush=True)
        os._exit(0)
    os.waitpid(child, 0)
"""

CHECKPOINTS = """
import io, torch
from legroom.predict.sandbox.checkpoints import load_saved, save
model = torch.nn.Linear(2, 3)
print(load_saved("best.pt", None)[0])
save({"model": model.state_dict(), "epoch": 3}, "best.pt")
known, loaded = load_saved("best.pt", "cpu")
print(known, loaded["epoch"], {name: tuple(value.shape) for name, value in loaded["model"].items()})
buffer = io.BytesIO()
save(model, buffer)
buffer.seek(0)
print(type(load_saved(buffer, None)[1].weight).__name__)
"""

SAVED_VALUES = """
import io, pickle, torch
from legroom.gpus.catalog import find_gpu
from legroom.predict.sandbox.checkpoints import checkpoints_in
from legroom.predict.tracing.virtual_trace import make_device
with make_device(find_gpu("1GiB"), "fake", lambda event: None), checkpoints_in(sandbox, has_data=False):
    labels, loss = torch.arange(4), torch.ones(3, device="cuda").mean()
    torch.save({"labels": labels, "sparse": torch.eye(2).to_sparse(), "loss": loss}, "data.pt")
    loaded = torch.load("data.pt")
    print(loaded["labels"].tolist(), loaded["sparse"].to_dense().tolist(), loaded["loss"].shape, loaded["loss"].device)
    print(torch.load("data.pt", map_location="cuda")["labels"].device)
    pickle.dump({"losses": torch.FloatTensor([2, 4]).mean(), "labels": labels, "loss": loss}, open("log.csv", "wb"))
    again = pickle.load(open("log.csv", "rb"))
    print(again["losses"].item(), again["labels"].tolist(), again["loss"].device)
    print(pickle.loads(pickle.dumps(torch.eye(2, device="cuda").to_sparse())).shape)
"""

USERS_CHECKPOINTS = """
import torch
from legroom.predict.sandbox.checkpoints import checkpoints_in
with checkpoints_in(sandbox, has_data=False):
    os.rename("real.pt", "moved.pt")
    loaded = torch.load("moved.pt", map_location="cpu")
    print(loaded["weight"][999].item(), "real.pt" in pathlib.Path("/proc/self/maps").read_text())
    print(torch.load("old.pt")[9].item())
"""

_SCRIPTED = "m = torch.jit.script(torch.nn.Linear(2, 1)); "

NATIVE = {
    "storage": ("torch.save(torch.ones(3).untyped_storage(), 'best.pt'); print(len(torch.load('best.pt', weights_only=False)))", "12"),
    "typed storage": ("torch.save(obj=torch.ones(3).storage(), f=pathlib.Path('best.pt')); print(len(torch.load('best.pt', weights_only=False)))", "3"),
    "old format": ("torch.save(torch.ones(3), 'best.pt', _use_new_zipfile_serialization=False); print(torch.load('best.pt').sum().item())", "3.0"),
    "name that is not ASCII": ("torch.save(torch.ones(3), 'b\u00e9st.pt'); print(torch.load('b\u00e9st.pt').sum().item())", "3.0"),
    "scripted module": (_SCRIPTED + "torch.jit.save(m, 'best.pt'); print(torch.jit.load('best.pt').original_name)", "Linear"),
    "method of a scripted module": (_SCRIPTED + "m.save('best.pt'); print(torch.jit.load(pathlib.Path('best.pt')).original_name)", "Linear"),
    "traced function": ("torch.jit.trace(torch.nn.functional.relu, torch.ones(2)).save('best.pt'); print(torch.jit.load('best.pt')(torch.ones(1)).item())", "1.0"),
    "lite interpreter": (_SCRIPTED + "m._save_for_lite_interpreter('best.pt'); torch.jit.mobile._load_for_lite_interpreter('best.pt'); print(1)", "1"),
    "flatbuffer": (_SCRIPTED + "torch.jit.save_jit_module_to_flatbuffer(m, 'best.pt'); torch.jit.jit_module_from_flatbuffer('best.pt'); print(1)", "1"),
    "package": ("from torch.package import PackageExporter as E, PackageImporter as I\nwith E('best.pt') as e: e.save_pickle('a', 'b', torch.ones(3))\n"
                "print(I('best.pt').load_pickle('a', 'b').sum().item())", "3.0"),
    "exported program": ("e = torch.export.export(torch.nn.Linear(2, 1), (torch.ones(1, 2),)); torch.export.save(e, 'best.pt2'); print(type(torch.export.load('best.pt2')).__name__)", "ExportedProgram"),
    "profile": ("with torch.profiler.profile() as p: torch.ones(3).sum()\np.export_chrome_trace('best.pt'); print('traceEvents' in open('best.pt').read())", "True"),
    "private mapping": ("print(torch.from_file('log.csv', size=4, dtype=torch.uint8).tolist(), list(pathlib.Path(sandbox.overlay.upper).rglob('log.csv')))", "[115, 116, 101, 112] []"),
    "mapped tensor": ("torch.from_file('log.csv', shared=True, size=4, dtype=torch.uint8)[:] = 65; print(open('log.csv').read())", "AAAA,loss"),
    "mapped storage": ("torch.UntypedStorage.from_file('runs/old/events', True, 4)[0] = 65; print(open('runs/old/events').read())", "Avents"),
    "safetensors": ("import safetensors.torch as s; s.save_file({'a': torch.ones(3)}, 'best.pt'); print(s.load_file('best.pt')['a'].sum().item())", "3.0"),
    "safetensors, numpy": ("import numpy, safetensors.numpy as s; s.save_file({'a': numpy.ones(3)}, filename='best.pt'); print(s.load_file('best.pt')['a'].sum())", "3.0"),
}  # fmt: skip
"""Programs that open a path in C++ or Rust."""

RUN_NATIVE = f"""
import contextlib, io, json, warnings
warnings.simplefilter("ignore")
import torch.jit.mobile
from legroom.predict.sandbox.checkpoints import checkpoints_in
found = {{}}
with checkpoints_in(sandbox, has_data=True):
    for name, program in { ({name: program for name, (program, _) in NATIVE.items()})!r}.items():
        with contextlib.redirect_stdout(io.StringIO()) as output:
            try:
                exec(program)
            except Exception as error:
                print(repr(error))
        found[name] = output.getvalue().strip()
print(json.dumps(found))
"""

REFUSED = {
    "refused os.system": "try: os.system('rm -f best.pt')\nexcept PermissionError as error: print(error)",
    "refused shell": "import subprocess\ntry: subprocess.run('rm -f best.pt', shell=True)\nexcept PermissionError as error: print(error)",
}
HARMLESS = "import subprocess; print(subprocess.run(['echo', 'hi'], capture_output=True, text=True).stdout)"

PROGRAMS = {
    **{name: (program, True) for name, (program, _) in {**WRITES, **ESCAPES}.items()},
    **{f"{name}, no Landlock": (program, False) for name, (program, _) in {**WRITES, **ESCAPES}.items()},
    "native": (RUN_NATIVE, True),
    "native, no Landlock": (RUN_NATIVE, False),
    **{name: (program, False) for name, program in REFUSED_CHANGES.items()},
    **{name: (program, True) for name, program in NOT_PYTHON.items()},
    **{name: (program, False) for name, program in REFUSED.items()},
    "forks": (FORKS, True),
    "checkpoints": (CHECKPOINTS, True),
    "saved values": (SAVED_VALUES, True),
    "user's checkpoints": (USERS_CHECKPOINTS, True),
    "harmless": (HARMLESS, False),
}


@pytest.fixture(scope="module")
def printed(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], str]:
    """Return the output of a program in the sandbox. All programs run first, each in a fork with its own project."""
    folder = tmp_path_factory.mktemp("sandbox")
    projects = {name: make_project(folder / str(number)) for number, name in enumerate(PROGRAMS)}
    before = {name: snapshot(project) for name, project in projects.items()}
    work = [(name, str(projects[name]), *program) for name, program in PROGRAMS.items()]
    done = subprocess.run([sys.executable, "-c", DRIVER], input=json.dumps(work), text=True, timeout=240)
    assert done.returncode == 0

    def printed(name: str) -> str:
        assert snapshot(projects[name]) == before[name], "a file of the user changed"
        return Path(f"{projects[name]}.out").read_text().strip()

    return printed


@pytest.mark.parametrize("landlock", [True, False])
@pytest.mark.parametrize("name", [*WRITES, *ESCAPES])
def test_a_script_reads_back_what_it_wrote_and_no_file_changes(
    name: str, landlock: bool, printed: Callable[[str], str]
) -> None:
    expected = {**WRITES, **ESCAPES}[name][1]
    assert printed(name if landlock else f"{name}, no Landlock") == expected


@pytest.mark.parametrize("landlock", [True, False])
def test_files_that_torch_opens_without_python_are_in_the_sandbox(
    landlock: bool, printed: Callable[[str], str]
) -> None:
    *_, last = printed(
        "native" if landlock else "native, no Landlock"
    ).splitlines()  # after messages of the profiler
    found = json.loads(last)
    assert found == {name: expected for name, (_, expected) in NATIVE.items()}


@pytest.mark.parametrize("name", REFUSED_CHANGES)
def test_python_calls_below_the_overlay_are_rejected(name: str, printed: Callable[[str], str]) -> None:
    assert "`legroom estimate` blocked a change to" in printed(name)


def has_landlock() -> bool:
    program = "from legroom.predict.sandbox.landlock import forbid_writes_outside as f; raise SystemExit(not f(['/dev']))"
    return subprocess.run([sys.executable, "-c", program]).returncode == 0


@pytest.mark.skipif(not has_landlock(), reason="this kernel has no Landlock")
@pytest.mark.parametrize("name", NOT_PYTHON)
def test_code_outside_of_python_cannot_change_files(name: str, printed: Callable[[str], str]) -> None:
    printed(name)


@pytest.mark.parametrize("name", REFUSED)
def test_without_landlock_programs_that_could_change_files_are_rejected(
    name: str, printed: Callable[[str], str]
) -> None:
    assert printed(name).startswith("`legroom estimate` does not start `")
    assert "rm -f best.pt" in printed(name)


def test_without_landlock_programs_that_change_nothing_run(printed: Callable[[str], str]) -> None:
    assert printed("harmless") == "hi"


def test_each_fork_writes_to_its_own_copies(printed: Callable[[str], str]) -> None:
    assert printed("forks").splitlines() == ["common 0", "common 1"]


def test_a_saved_checkpoint_is_loaded_again_without_its_data(printed: Callable[[str], str]) -> None:
    assert printed("checkpoints").splitlines() == [
        "False",
        "True 3 {'weight': (3, 2), 'bias': (3,)}",
        "Parameter",
    ]


def test_host_tensors_keep_their_values_in_saved_and_pickled_files(printed: Callable[[str], str]) -> None:
    assert printed("saved values").splitlines() == [
        "[0, 1, 2, 3] [[1.0, 0.0], [0.0, 1.0]] torch.Size([]) cuda:0",
        "cuda:0",
        "3.0 [0, 1, 2, 3] cuda:0",
        "torch.Size([2, 2])",
    ]


@pytest.mark.skipif(
    not Path("/proc/self/maps").exists(), reason="what a process has mapped is read from Linux"
)
def test_a_checkpoint_of_the_user_is_mapped_and_an_old_one_is_read(printed: Callable[[str], str]) -> None:
    assert printed("user's checkpoints").splitlines() == ["999 True", "9"]
