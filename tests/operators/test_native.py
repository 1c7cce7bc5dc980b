"""Kernels that are kept: found where their code is the same, called with what they take, in threads and processes."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
import tempfile
import textwrap
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cedar.core.errors import PipelineError
from cedar.operators import native
from cedar.operators.image.gaussian_blur import GaussianBlur
from cedar.operators.image.kernels import compiled
from cedar.store.folder import Folder
from tests.waiting import eventually

pytest.importorskip("numba")


KERNELS = """
from cedar.operators.jit import kernel

@kernel("void(int64, UniTuple(float64, 2), float32[:, ::1], boolean)")
def put(x, pair, rows, flag):
    rows[x, 0] = pair[1] if flag else pair[0]
"""
LOAD = """
import sys
from cedar.operators import native

sys.path.insert(0, sys.argv[1])
assert native.load(sys.argv[2].removesuffix(".py")).put
assert not [name for name in sys.modules if name.partition(".")[0] == "numba"]
"""
MAKE = """
import sys; sys.path[:] = {path!r}
from cedar.operators.native import make
make({module!r}, ["put"], {parent})
"""


def make(module: str) -> None:
    code = MAKE.format(path=sys.path, module=module, parent=os.getpid())
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


@pytest.fixture
def module(tmp_path, monkeypatch, request) -> str:
    name = f"kernels_of_{request.node.name.partition('[')[0]}"
    (tmp_path / f"{name}.py").write_text(KERNELS)
    monkeypatch.syspath_prepend(str(tmp_path))
    assert native.load(name) is None
    make(name)
    return name


def file_of(module: str) -> Path:
    places: list[Any] = native._places(module)
    paths = [Path(place.path(native._name(module))) for place in places]
    (path,) = (path for path in paths if path.exists())
    return path


@pytest.mark.heavy
def test_kernels_take_numbers_tuples_and_arrays(module):
    rows = np.zeros((3, 2), np.float32)
    put = native.load(module).put
    put(1, (0.5, 1.5), rows, True)
    put(np.int64(2), (0.5, 1.5), rows, np.bool_(False))
    assert rows.tolist() == [[0, 0], [1.5, 0], [0.5, 0]]
    ended = subprocess.run([sys.executable, "-c", LOAD, *native._origin(module).rsplit("/", 1)], check=True)
    assert ended.returncode == 0


@pytest.mark.heavy
def test_what_they_do_not_take_is_an_error(module):
    put, rows = native.load(module).put, np.zeros((3, 2), np.float32)
    for values in (
        (1, (0.5, 1.5), np.zeros((3, 2)), True),
        (1, (0.5, 1.5), np.zeros(3, np.float32), True),
        (1, (0.5, 1.5), np.zeros((3, 4), np.float32)[:, ::2], True),
        (1, (0.5,), rows, True),
        (1, (0.5, "x"), rows, True),
        (1, (0.5, 1.5), rows),
    ):
        with pytest.raises((TypeError, ValueError)):
            put(*values)


@pytest.mark.heavy
def test_torn_ones_and_those_of_other_code_are_not_loaded_and_made_anew(module):
    path = file_of(module)
    whole = path.read_bytes()
    for damaged in (whole[:-20], b"", whole[:40] + b"x" + whole[41:]):
        path.write_bytes(damaged)
        assert native.load(module) is None
        assert not native.kept(module)
    make(module)
    assert native.kept(module)
    source = Path(native._origin(module))
    source.with_name("a_module_beside.py").write_text("")
    assert not native.kept(module)
    make(module)
    before = source.stat()
    source.write_text(KERNELS.replace("rows[x, 0]", "rows[x, 1]"))
    os.utime(source, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert source.stat().st_size == before.st_size
    assert not native.kept(module), "it is told by what is in it"
    source.write_text(KERNELS)
    source.with_name(".#editor.py").symlink_to("nowhere")
    assert native.kept(module)


@pytest.mark.heavy
def test_where_the_folder_of_the_code_cannot_be_written_they_are_kept_for_the_user(module, monkeypatch, tmp_path):
    codes, sources, path = native._load_stored(module), native.sources_of(module), file_of(module)
    os.remove(path)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(native.Folder, "_make", _refused)
    with pytest.raises(OSError, match="neither next to their source code nor"):
        native.keep(module, codes, sources)
    monkeypatch.setattr(native.Folder, "_make", lambda self: _refused(self) if self._shared else _make(self))
    for base in (tmp_path / "cache", "/proc/none"):  # the user's cache, then a folder among the temporary ones
        monkeypatch.setenv("XDG_CACHE_HOME", str(base))
        assert native.load(module) is None
        native.keep(module, codes, sources)
        assert native.load(module) is not None
        assert file_of(module) != path


@pytest.mark.heavy
def test_what_was_compiled_of_code_that_was_changed_meanwhile_is_not_kept(module):
    codes, sources = native._load_stored(module), native.sources_of(module)
    source = Path(native._origin(module))
    source.write_text(source.read_text() + "# changed\n")
    with pytest.raises(OSError, match="source code changed while they were compiled"):
        native.keep(module, codes, sources)


@pytest.mark.heavy
def test_a_full_disk_leaves_no_part_of_a_file(module, monkeypatch):
    codes, sources = native._load_stored(module), native.sources_of(module)

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(OSError, match="nor in the user's cache folder"):
        native.keep(module, codes, sources)
    assert not [path for place in native._places(module) for path in Path(place._path).glob(".*.tmp")]


@pytest.mark.heavy
def test_all_kernels_of_images_and_sound_are_kept():
    assert {name for kind in ("resample", "pixels", "iou") for name in vars(compiled(kind))} == {
        "resize", "resize_all", "apply", "try_parts",
    }  # fmt: skip
    assert callable(native.kernels("cedar.operators.audio.mel_kernels", "mel_spectrogram").mel_spectrogram)


def _refused(_: Folder) -> None:
    raise PermissionError("a folder that cannot be written")


_make = Folder._make


def blurred(seed):
    image = np.random.default_rng(seed).integers(0, 256, (30, 40, 3), dtype=np.uint8)
    return GaussianBlur(9, 1.5)(image).tobytes()


def test_threads_and_processes_make_the_same():
    wanted = [blurred(seed) for seed in range(8)]
    with ThreadPoolExecutor(4) as threads:
        assert list(threads.map(blurred, range(8), timeout=60)) == wanted
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("forkserver")) as processes:
        assert list(processes.map(blurred, range(8), timeout=100)) == wanted


pytest.importorskip("numba")


pytestmark = pytest.mark.heavy

SLOW_KERNELS = """
import time
from cedar.operators.jit import kernel
{before}
@kernel("void(int64, int64[::1])")
def doubled(x, out):
    out[0] = 2 * x
"""


def twice(kernels, x: int) -> int:
    out = np.zeros(1, np.int64)
    kernels.doubled(x, out)
    return int(out[0])


@pytest.fixture
def fresh(tmp_path, monkeypatch):
    """A module of kernels that no disk has."""
    monkeypatch.delenv(native.VARIABLE)
    monkeypatch.setattr(native, "_loaded", {})
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(native, "_compile_queue", native._CompileQueue())

    def write(name: str, before: str = "") -> str:
        (tmp_path / f"{name}.py").write_text(SLOW_KERNELS.format(before=before))
        return name

    return write


def until_there(module: str):
    assert eventually(lambda: native.kernels(module, "doubled") is not None), "never compiled"
    assert eventually(lambda: native._compile_queue.thread is None)
    return native.kernels(module, "doubled")


def test_nobody_waits_for_kernels_and_another_process_compiles_them(fresh, tmp_path):
    name = fresh("kernels_beside", noted(tmp_path))
    assert native.kernels(name, "doubled") is None
    assert twice(until_there(name), 21) == 42
    (path,) = tmp_path.glob("pid *")
    assert int(path.name.split()[1]) != os.getpid(), "it is not even imported here"


def noted(tmp_path: Path) -> str:
    """A line that leaves a note of each process that runs the module."""
    return f"import os, pathlib; pathlib.Path({str(tmp_path)!r}, f'pid {{os.getpid()}}').touch()"


def test_it_is_compiled_no_later_than_the_run_gets_on_without(fresh, tmp_path):
    name = fresh("kernels_in_a_hurry", f"import os; open({str(tmp_path / 'nice')!r}, 'w').write(str(os.nice(0)))")
    assert native._process(name, ["doubled"]).wait() == 0
    assert int((tmp_path / "nice").read_text()) == os.nice(0)


def test_it_is_known_while_kernels_are_compiled(fresh):
    assert not native.is_compiling()
    name = fresh("kernels_under_way")
    native.kernels(name, "doubled")
    assert native.is_compiling()
    until_there(name)
    assert eventually(lambda: not native.is_compiling())


def test_processes_that_want_the_same_kernels_compile_them_once(fresh, tmp_path):
    name = fresh("kernels_of_several", noted(tmp_path))
    processes = [native._process(name, ["doubled"]) for _ in range(3)]
    assert [process.wait() for process in processes] == [0, 0, 0]
    assert len(list(tmp_path.glob("pid *"))) == 1


PARENT = """
import sys, time
from cedar.operators import native
sys.path.insert(0, sys.argv[1])
native._process("kernels_that_take_long", ["doubled"])
time.sleep(600)
"""


def test_a_process_that_compiles_ends_with_the_one_that_wanted_it_however_that_ends(fresh, tmp_path):
    fresh("kernels_that_take_long", noted(tmp_path) + "\ntime.sleep(600)")
    parent = subprocess.Popen([sys.executable, "-c", PARENT, str(tmp_path)])
    assert eventually(lambda: list(tmp_path.glob("pid *")))
    (note,) = tmp_path.glob("pid *")
    parent.kill()
    parent.wait()
    assert eventually(lambda: not _cmdline(note.name.split()[1]))


def _cmdline(pid: str) -> bytes:
    """Empty of one that has ended and that nothing waited for."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def test_those_that_are_kept_are_loaded_at_once(fresh):
    name = fresh("kernels_kept")
    assert native._process(name, ["doubled"]).wait() == 0
    assert twice(native.kernels(name, "doubled"), 2) == 4
    assert native._compile_queue.thread is None


def test_who_asks_to_wait_waits(fresh, monkeypatch):
    monkeypatch.setenv(native.VARIABLE, "wait")
    assert twice(native.kernels(fresh("kernels_waited_for"), "doubled"), 2) == 4


def gone_without(name: str, caplog) -> str:
    """The warning of a run that gets no kernels, and continues."""
    assert eventually(lambda: native.kernels(name, "doubled") is not None or not native.is_compiling())
    assert not native.is_compiling()
    assert [native.kernels(name, "doubled") for _ in range(3)] == [None] * 3
    said: str
    (said,) = (text for text in caplog.messages if "compiled kernels are not available" in text)
    return said


def test_where_there_can_be_no_other_process_the_run_goes_on_without_and_says_so(fresh, monkeypatch, caplog):
    monkeypatch.setattr(native.subprocess, "Popen", lambda *args, **options: (_ for _ in ()).throw(OSError("no room")))
    assert "no room" in gone_without(fresh("kernels_of_nobody"), caplog)


def test_where_no_temporary_file_can_be_written_the_run_goes_on_without(fresh, monkeypatch, caplog):
    monkeypatch.setattr(native.tempfile, "TemporaryFile", lambda: (_ for _ in ()).throw(FileNotFoundError("no folder")))
    assert "no folder" in gone_without(fresh("kernels_without_a_folder"), caplog)


def test_what_compiling_them_raises_is_told(fresh, caplog):
    name = fresh("kernels_that_fail", "raise ValueError('broken\\n  in two lines')")
    assert gone_without(name, caplog).endswith("ValueError: broken")


def test_those_that_cannot_be_linked_are_done_without(fresh, monkeypatch, caplog):
    def refused(name, code):
        raise RuntimeError("no such relocation")

    name = fresh("kernels_that_do_not_link")
    assert native._process(name, ["doubled"]).wait() == 0
    monkeypatch.setattr(native, "_linked", refused)
    assert "no such relocation" in gone_without(name, caplog)


def test_who_waits_for_what_is_not_to_be_had_is_told(fresh, monkeypatch):
    monkeypatch.setenv(native.VARIABLE, "wait")
    name = fresh("kernels_waited_for_in_vain", "raise ValueError('broken')")
    for _ in range(2):
        with pytest.raises(PipelineError, match="ValueError: broken"):
            native.kernels(name, "doubled")


def test_numbas_variables_of_a_user_do_not_get_into_what_is_kept(fresh, monkeypatch, tmp_path):
    monkeypatch.setenv("NUMBA_BOUNDSCHECK", "1")
    name = fresh("kernels_for_all", f"import os; open({str(tmp_path / 'names')!r}, 'w').write(' '.join(os.environ))")
    assert native._process(name, ["doubled"]).wait() == 0
    assert "NUMBA" not in (tmp_path / "names").read_text()


def test_without_numba_the_error_names_the_extra(fresh, monkeypatch):
    monkeypatch.setitem(sys.modules, "llvmlite", None)
    with pytest.raises(PipelineError, match="numba") as caught:
        native.kernels(fresh("kernels_without_numba"), "doubled")
    assert "cedar-data[images]" in str(caught.value)


def test_a_long_compilation_is_told_once(fresh, monkeypatch):
    said: list[str] = []
    monkeypatch.setattr(native, "say", said.append)
    monkeypatch.setattr(native, "_SILENT_SECONDS", 0.0)
    until_there(fresh("kernels_told"))
    assert len(said) == 2
    assert "compiling kernels in the background" in said[0]
    assert "kernels are compiled" in said[1]


SCRIPT = """
    import subprocess, sys
    import numpy as np
    import cedar
    from cedar.operators import image, native

    if sys.argv[1] == "none are kept":
        native.load = lambda module: None
        native._process = lambda *_: subprocess.Popen(  # "cat" ends with this process
            ["cat"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL
        )

    rng = np.random.default_rng(0)
    rows = [{"image": rng.integers(0, 256, (60, 70, 3), dtype=np.uint8)} for _ in range(24)]
    p = cedar.from_items(rows)
    for step in (
        image.random_resized_crop(32), image.color_jitter(0.4, 0.4, 0.4, 0.1), image.gaussian_blur(5),
        image.to_float(), image.normalize(0.5, 0.2), image.channels_first(),
    ):
        p = p.map(step, "image")
    with p.batch(8).loader(seed=1, executor="threads") as loader:
        for number, batch in enumerate(loader):
            if number == 0:
                print(native.is_compiling())
            print(batch["image"].astype("f4").tobytes().hex())
"""


def test_the_first_images_on_a_machine_do_not_wait_and_are_the_same():
    def run(case: str, variable: str) -> list[str]:
        environment = {**os.environ, native.VARIABLE: variable}
        command = [sys.executable, "-c", textwrap.dedent(SCRIPT), case]
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout.split()

    waited, *wanted = run("", "wait")
    at_once, *plain = run("none are kept", "")
    assert waited == "False"
    assert at_once == "True"
    assert plain == wanted
