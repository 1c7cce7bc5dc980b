"""Kernels that are kept: found where their code is the same, called with what they take, in threads and processes."""

import multiprocessing
import os
import subprocess
import sys
import tempfile
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("numba")

from cedar.operators import background_kernels, native
from cedar.operators.image.blur import GaussianBlur
from cedar.operators.image.kernels import compiled
from cedar.store.folder import Folder

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
from cedar.operators.background_kernels import make
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
    assert callable(background_kernels.kernels("cedar.operators.audio.mel_kernels", "mel_spectrogram").mel_spectrogram)


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
