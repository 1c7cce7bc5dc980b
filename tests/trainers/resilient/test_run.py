"""Runs of the command: a machine that dies, a store that dies, and what is told in a line."""

from __future__ import annotations

import os
import re
import signal
import sys
from pathlib import Path

import pytest
import torch

from cedar.cli import main
from cedar.core.errors import CedarError
from cedar.trainers.common import config, links
from cedar.trainers.common.checkpoint import INDEX, newest, path_of, write_index
from cedar.trainers.common.files import Damaged, MetricsFile
from cedar.trainers.common.group import Group
from cedar.trainers.resilient.control import store
from cedar.trainers.resilient.control.board import Board
from cedar.trainers.resilient.control.lead import Coordinator
from cedar.trainers.resilient.control.store import Values
from cedar.trainers.resilient.options import Options
from cedar.trainers.resilient.pipeline import Workers
from cedar.trainers.resilient.run import KEY, ProgressReader, find_checkpoint
from cedar.trainers.resilient.schedule import Worker
from cedar.trainers.resilient.text import text_pipeline
from tests.trainers.common.toy_checkpoints import saved
from tests.trainers.resilient.toy_processes import TAKES_MINUTES, check, describe, ended, reference, started
from tests.waiting import eventually

pytestmark = [
    pytest.mark.heavy,
    pytest.mark.waits,
    pytest.mark.timeout(400),
    pytest.mark.skipif(sys.platform != "linux", reason="workers are forked, and die with their supervisor on Linux"),
]


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_gpu_that_is_not_there_is_told_in_a_line(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "resilient", str(file), "run.device=cuda"]) == 1
    told = capsys.readouterr().err
    assert "run.device is 'cuda', but torch sees 0 GPU" in told
    assert "Traceback" not in told


@TAKES_MINUTES
def test_a_machine_dies_with_its_workers_and_another_takes_over(file: Path, tmp_path: Path) -> None:
    changes = ["run.steps=60", "run.save_every=0", "run.pace=0.015", "run.silence=5.0", 'pipeline.mode="staggered"']
    lead = started(file, *changes, "--machines", "2")
    others = []
    try:
        assert lead.stdout is not None
        line = lead.stdout.readline()
        match = re.search(r"at (\S+)", line)
        assert match is not None, line
        for _ in range(2):
            others.append(started(file, *changes, "--join", match[1]))
            assert others[-1].stdout is not None
            assert others[-1].stdout.readline().startswith("joined")
        host, _, port = match[1].rpartition(":")
        board = Board(store.connect(host, int(port), links.read_key(str(tmp_path / "run" / KEY))))
        assert eventually(lambda: board.get("done/1/4") is not None)  # the run is in its midst
        os.kill(others[0].pid, signal.SIGKILL)  # its workers die with it
        ended(lead)
        ended(others[1], 60)
    finally:
        for process in (lead, *others):
            process.kill()
            process.communicate()
    record = describe(tmp_path)
    assert {"failure", "join"} <= {event["what"] for event in record["events"]}
    check(record, reference(file, changes), workers=4)


def test_a_store_that_dies_ends_the_run_with_an_error(file: Path, tmp_path: Path) -> None:
    lead = started(file, "--machines", "2")
    try:
        assert lead.stdout is not None
        match = re.search(r"at (\S+):(\d+)", lead.stdout.readline())
        assert match is not None
        key = links.read_key(str(tmp_path / "run" / KEY))
        pid = Board(store.connect(match[1], int(match[2]), key)).get("store")
        os.kill(pid, signal.SIGKILL)
        _, err = lead.communicate(timeout=120)
    finally:
        lead.kill()
    assert lead.returncode not in (0, None)
    assert "the run's store is gone" in err


def test_machines_that_do_not_come_end_the_run(file: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """It waited without end, and printed an address that no other machine can reach."""
    assert main(["train", "resilient", str(file), "--machines", "2", "run.patience=0.5"]) == 1
    out, err = capsys.readouterr()
    assert "from this machine only; for others, give --listen HOST:PORT" in out
    assert "1 of 2 machines joined within 0.5 s" in err
    assert not (tmp_path / "run" / KEY).exists()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--replicas", "3"], "cannot be cut into 3 x 2 micro-batches"),
        (["--stages", "5"], "2 layers cannot be split into 5 stages"),
        (["--chaos", "kill=9@step3"], "workers are 0 to 3"),
        (["--chaos", "explode"], "'explode' is unknown"),
        (["--chaos", "kill=1@step100"], "steps are 0 to 99"),
        (["--chaos", "rejoin@step3", "run.steps=3"], "steps are 0 to 2"),
        (["--join", "nowhere"], "is not an address"),
        (["pipeline.memory=much"], "memory is 'much'"),
        (["pipeline.mode=never"], "'never'"),
        (["run.heartbeat=0"], "give seconds"),
    ],
)
def test_bad_input_is_told(file: Path, arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "resilient", str(file), *arguments]) != 0
    assert words in capsys.readouterr().err


@pytest.mark.parametrize("option", ["--stages", "--replicas", "--machines"])
def test_counts_of_none_are_refused(file: Path, option: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The batch was to be a multiple of 0, and no machine counted as one."""
    with pytest.raises(SystemExit):
        main(["train", "resilient", str(file), option, "0"])
    assert f"argument {option}: must be an integer above 0, not '0'" in capsys.readouterr().err
    with pytest.raises(ValueError, match="is 0: give 1 or more"):
        Workers(replicas=0, machines=0)


def test_a_start_that_failed_may_be_tried_again_in_its_folder(file: Path, tmp_path: Path) -> None:
    """It was refused: the folder held the files of another run."""
    failed = started(file, f"data.paths={tmp_path / 'none.txt'}")
    _, err = failed.communicate(timeout=120)
    assert failed.returncode == 1, err
    assert "did not start" in err
    ended(started(file, "run.steps=2"))
    assert len(describe(tmp_path)["steps"]) == 2


def test_a_port_that_is_taken_leaves_no_key(file: Path, tmp_path: Path) -> None:
    with links.listen("127.0.0.1") as taken:
        pipeline = text_pipeline(config.load(str(file), Options), 2, Workers(listen=taken.getsockname()))
        with pytest.raises(CedarError, match="cannot listen on"):
            pipeline.train(quiet=True)
    assert not (tmp_path / "run" / KEY).exists()


def test_a_resumed_run_does_not_see_damaged_checkpoints_again(tmp_path: Path) -> None:
    """A restore within the run took the one that --resume had skipped, as it reads only the index."""
    folder, windows = str(tmp_path / "checkpoints"), str(tmp_path / "windows")
    assert find_checkpoint(folder, windows, 9) == ""
    saved(Group(), folder, 0, steps=(2, 4))

    def damage(step: int) -> None:
        file = Path(path_of(folder, step)) / "rank-0.safetensors"
        file.write_bytes(file.read_bytes()[:-1])

    damage(4)
    assert find_checkpoint(folder, windows, 9) == newest(folder) == path_of(folder, 2)
    assert sorted(os.listdir(folder)) == ["step-00000002", "step-00000004.damaged"]
    damage(2)
    with pytest.raises(Damaged, match="all checkpoints in .* are damaged"):
        find_checkpoint(folder, windows, 9)
    assert newest(folder) == path_of(folder, 2)


def save_windows(folder: str, steps: range) -> None:
    """Slots of windows of two steps, without tensors."""
    for step in steps:
        os.makedirs(path_of(folder, step))
        write_index(path_of(folder, step), {"window": [step - step % 2, step - step % 2 + 1, 1]}, [])


def test_windows_whose_index_is_damaged_are_told_and_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """They were skipped in silence, and if there were no others, the run began at step 0 and removed them all."""
    folder, windows = str(tmp_path / "checkpoints"), str(tmp_path / "windows")
    save_windows(windows, range(4))
    assert find_checkpoint(folder, windows, 9) == path_of(windows, 2)
    (Path(path_of(windows, 3)) / INDEX).write_bytes(b"{")
    assert find_checkpoint(folder, windows, 9) == path_of(windows, 0)
    assert "step-00000003/index.json cannot be read" in capsys.readouterr().err
    (Path(path_of(windows, 0)) / INDEX).write_bytes(b"{")
    with pytest.raises(Damaged, match="all checkpoints in .* are damaged"):
        find_checkpoint(folder, windows, 9)


def test_a_damaged_checkpoint_of_the_step_at_which_a_window_begins_is_renamed(tmp_path: Path) -> None:
    """A restore within the run preferred it to the window."""
    folder, windows = str(tmp_path / "checkpoints"), str(tmp_path / "windows")
    saved(Group(), folder, 0)
    save_windows(windows, range(4, 6))
    assert find_checkpoint(folder, windows, 9) == path_of(folder, 4)
    file = Path(path_of(folder, 4)) / "rank-0.safetensors"
    file.write_bytes(file.read_bytes()[:-1])
    assert find_checkpoint(folder, windows, 9) == path_of(windows, 4)
    assert os.listdir(folder) == ["step-00000004.damaged"]


def test_a_micro_batch_that_was_repeated_counts_once() -> None:
    """The worker of replica 1 died after it had published; replica 0 did its micro-batches again."""
    board = Board(Values())
    lead, reader = Coordinator(board, 2, 2), ProgressReader(board, 2, 2)
    board.put("loss/0/0/1", [[1, 0, 5.0], [1, 1, 6.0]])
    board.put("loss/0/0/0", [[0, 0, 1.0], [0, 1, 2.0], [1, 0, 5.0], [1, 1, 6.0]])
    board.put("done/0/0", 1.0)
    reader.read(lead, MetricsFile(""))
    assert reader.steps == [(0, 1.0, 3.5)]


def test_a_step_waits_for_the_losses_of_slower_replicas() -> None:
    """In staggered mode, the first replica that finishes a step reports that it is done."""
    board = Board(Values())
    lead, reader = Coordinator(board, 2, 2), ProgressReader(board, 2, 2)

    def read_losses() -> list[float]:
        reader.read(lead, MetricsFile(""))
        return [loss for _, _, loss in reader.steps]

    for step in range(2):
        board.put(f"loss/0/{step}/0", [[0, 0, 1.0], [0, 1, 2.0]])
        board.put(f"done/0/{step}", 1.0)
    assert read_losses() == [1.5]  # replica 1 died with its losses of step 0; those of step 1 may come
    board.put("loss/0/1/1", [[1, 0, 5.0], [1, 1, 6.0]])
    assert read_losses() == [1.5, 3.5]
    assert board.get("done/0/0") is None
    board.put("loss/0/2/0", [[0, 0, 4.0]])
    board.put("done/0/2", 1.0)
    assert read_losses() == [1.5, 3.5]
    lead.members, lead.ended = {Worker(1, 0)}, {Worker(1, 0): {}}
    assert read_losses() == [1.5, 3.5, 4.0]
