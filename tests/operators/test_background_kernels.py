"""Kernels that were never compiled on a machine: nothing waits, another process compiles them, the bits are the
same.
"""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("numba")

from cedar.core.errors import PipelineError
from cedar.operators import background_kernels
from tests.waiting import eventually

pytestmark = pytest.mark.heavy

KERNELS = """
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
    monkeypatch.delenv(background_kernels.VARIABLE)
    monkeypatch.setattr(background_kernels, "_loaded", {})
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(background_kernels, "_compile_queue", background_kernels._CompileQueue())

    def write(name: str, before: str = "") -> str:
        (tmp_path / f"{name}.py").write_text(KERNELS.format(before=before))
        return name

    return write


def until_there(module: str):
    assert eventually(lambda: background_kernels.kernels(module, "doubled") is not None), "never compiled"
    assert eventually(lambda: background_kernels._compile_queue._thread is None)
    return background_kernels.kernels(module, "doubled")


def test_nobody_waits_for_kernels_and_another_process_compiles_them(fresh, tmp_path):
    name = fresh("kernels_beside", noted(tmp_path))
    assert background_kernels.kernels(name, "doubled") is None
    assert twice(until_there(name), 21) == 42
    (path,) = tmp_path.glob("pid *")
    assert int(path.name.split()[1]) != os.getpid(), "it is not even imported here"


def noted(tmp_path: Path) -> str:
    """A line that leaves a note of each process that runs the module."""
    return f"import os, pathlib; pathlib.Path({str(tmp_path)!r}, f'pid {{os.getpid()}}').touch()"


def test_it_is_compiled_no_later_than_the_run_gets_on_without(fresh, tmp_path):
    name = fresh("kernels_in_a_hurry", f"import os; open({str(tmp_path / 'nice')!r}, 'w').write(str(os.nice(0)))")
    assert background_kernels._process(name, ["doubled"]).wait() == 0
    assert int((tmp_path / "nice").read_text()) == os.nice(0)


def test_it_is_known_while_kernels_are_compiled(fresh):
    assert not background_kernels.is_compiling()
    name = fresh("kernels_under_way")
    background_kernels.kernels(name, "doubled")
    assert background_kernels.is_compiling()
    until_there(name)
    assert eventually(lambda: not background_kernels.is_compiling())


def test_processes_that_want_the_same_kernels_compile_them_once(fresh, tmp_path):
    name = fresh("kernels_of_several", noted(tmp_path))
    processes = [background_kernels._process(name, ["doubled"]) for _ in range(3)]
    assert [process.wait() for process in processes] == [0, 0, 0]
    assert len(list(tmp_path.glob("pid *"))) == 1


PARENT = """
import sys, time
from cedar.operators import background_kernels
sys.path.insert(0, sys.argv[1])
background_kernels._process("kernels_that_take_long", ["doubled"])
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
    assert background_kernels._process(name, ["doubled"]).wait() == 0
    assert twice(background_kernels.kernels(name, "doubled"), 2) == 4
    assert background_kernels._compile_queue._thread is None


def test_who_asks_to_wait_waits(fresh, monkeypatch):
    monkeypatch.setenv(background_kernels.VARIABLE, "wait")
    assert twice(background_kernels.kernels(fresh("kernels_waited_for"), "doubled"), 2) == 4


def gone_without(name: str, caplog) -> str:
    """The warning of a run that gets no kernels, and continues."""
    assert eventually(
        lambda: background_kernels.kernels(name, "doubled") is not None or not background_kernels.is_compiling()
    )
    assert not background_kernels.is_compiling()
    assert [background_kernels.kernels(name, "doubled") for _ in range(3)] == [None] * 3
    said: str
    (said,) = (text for text in caplog.messages if "compiled kernels are not available" in text)
    return said


def test_where_there_can_be_no_other_process_the_run_goes_on_without_and_says_so(fresh, monkeypatch, caplog):
    monkeypatch.setattr(
        background_kernels.subprocess, "Popen", lambda *args, **options: (_ for _ in ()).throw(OSError("no room"))
    )
    assert "no room" in gone_without(fresh("kernels_of_nobody"), caplog)


def test_where_no_temporary_file_can_be_written_the_run_goes_on_without(fresh, monkeypatch, caplog):
    monkeypatch.setattr(
        background_kernels.tempfile, "TemporaryFile", lambda: (_ for _ in ()).throw(FileNotFoundError("no folder"))
    )
    assert "no folder" in gone_without(fresh("kernels_without_a_folder"), caplog)


def test_what_compiling_them_raises_is_told(fresh, caplog):
    name = fresh("kernels_that_fail", "raise ValueError('broken\\n  in two lines')")
    assert gone_without(name, caplog).endswith("ValueError: broken")


def test_those_that_cannot_be_linked_are_done_without(fresh, monkeypatch, caplog):
    def refused(name, code):
        raise RuntimeError("no such relocation")

    name = fresh("kernels_that_do_not_link")
    assert background_kernels._process(name, ["doubled"]).wait() == 0
    monkeypatch.setattr(background_kernels.native, "_linked", refused)
    assert "no such relocation" in gone_without(name, caplog)


def test_who_waits_for_what_is_not_to_be_had_is_told(fresh, monkeypatch):
    monkeypatch.setenv(background_kernels.VARIABLE, "wait")
    name = fresh("kernels_waited_for_in_vain", "raise ValueError('broken')")
    for _ in range(2):
        with pytest.raises(PipelineError, match="ValueError: broken"):
            background_kernels.kernels(name, "doubled")


def test_numbas_variables_of_a_user_do_not_get_into_what_is_kept(fresh, monkeypatch, tmp_path):
    monkeypatch.setenv("NUMBA_BOUNDSCHECK", "1")
    name = fresh("kernels_for_all", f"import os; open({str(tmp_path / 'names')!r}, 'w').write(' '.join(os.environ))")
    assert background_kernels._process(name, ["doubled"]).wait() == 0
    assert "NUMBA" not in (tmp_path / "names").read_text()


def test_without_numba_the_error_names_the_extra(fresh, monkeypatch):
    monkeypatch.setitem(sys.modules, "llvmlite", None)
    with pytest.raises(PipelineError, match="numba") as caught:
        background_kernels.kernels(fresh("kernels_without_numba"), "doubled")
    assert "cedar-data[images]" in str(caught.value)


def test_a_long_compilation_is_told_once(fresh, monkeypatch):
    said: list[str] = []
    monkeypatch.setattr(background_kernels, "say", said.append)
    monkeypatch.setattr(background_kernels, "_SILENT_SECONDS", 0.0)
    until_there(fresh("kernels_told"))
    assert len(said) == 2
    assert "compiling kernels in the background" in said[0]
    assert "kernels are compiled" in said[1]


SCRIPT = """
    import subprocess, sys
    import numpy as np
    import cedar
    from cedar.operators import background_kernels, image, native

    if sys.argv[1] == "none are kept":
        native.load = lambda module: None
        background_kernels._process = lambda *_: subprocess.Popen(  # "cat" ends with this process
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
                print(background_kernels.is_compiling())
            print(batch["image"].astype("f4").tobytes().hex())
"""


def test_the_first_images_on_a_machine_do_not_wait_and_are_the_same():
    def run(case: str, variable: str) -> list[str]:
        environment = {**os.environ, background_kernels.VARIABLE: variable}
        command = [sys.executable, "-c", textwrap.dedent(SCRIPT), case]
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout.split()

    waited, *wanted = run("", "wait")
    at_once, *plain = run("none are kept", "")
    assert waited == "False"
    assert at_once == "True"
    assert plain == wanted
