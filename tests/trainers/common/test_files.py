"""Files of a run: sealed, there wholly or not, JSON that is JSON, and a folder that is one run's alone."""

from __future__ import annotations

import json
from dataclasses import dataclass

import pytest

from cedar.core.errors import CedarError
from cedar.trainers.common.files import (
    Damaged,
    MetricsFile,
    check_folder,
    claim_folder,
    read_lines,
    read_sealed,
    replacing,
    seal,
    unseal,
    write_sealed,
)


def test_lines_that_were_cut_off_are_left_out(tmp_path):
    (tmp_path / "m.jsonl").write_text(
        json.dumps({"step": 0}) + "\n" + json.dumps({"step": 1}) + "\n" + '{"step": 2, "lo'
    )
    assert [line["step"] for line in read_lines(str(tmp_path / "m.jsonl"))] == [0, 1]
    assert read_lines(str(tmp_path / "none.jsonl")) == []


def test_every_changed_byte_of_what_was_sealed_is_found(tmp_path):
    content = {"step": 3, "text": "naïve"}
    write_sealed(str(tmp_path / "a.json"), content)
    assert read_sealed(str(tmp_path / "a.json")) == content
    line = seal(content)
    for at in range(len(line) - 1):  # all but the end of the line
        with pytest.raises(Damaged, match="memory cannot be read"):
            unseal(line[:at] + bytes([line[at] ^ 1]) + line[at + 1 :], "memory")
    with pytest.raises(Damaged, match="No such file"):
        read_sealed(str(tmp_path / "none.json"))


def test_a_file_that_is_not_written_wholly_leaves_the_old_one(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("old")
    with pytest.raises(ZeroDivisionError), replacing(str(path)) as file:
        file.write(b"new")
        raise ZeroDivisionError
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_what_cannot_be_written_is_told_in_a_line(tmp_path):
    """These ended in an OSError without advice."""
    folder = tmp_path / "none"
    with pytest.raises(CedarError, match="none/run.json cannot be written: No such file or directory"):
        claim_folder(str(folder), "moe")
    file = MetricsFile(str(tmp_path / "metrics.jsonl"))
    file.path = str(folder / "metrics.jsonl")
    with pytest.raises(CedarError, match="none/metrics.jsonl cannot be written") as raised:
        file.write(Line(0, 1.0))
    assert raised.value.fix == "check the free space and the permissions of its folder"


@dataclass
class Line:
    step: int
    loss: float


def test_metrics_go_on_after_the_steps_that_stay(tmp_path):
    path, seen = str(tmp_path / "metrics.jsonl"), []
    first = MetricsFile(path)
    for step in range(4):
        first.write(Line(step, 0.5))
    MetricsFile(path, after=2, on_metrics=seen.append).write(Line(2, float("nan")))
    assert seen == [{"step": 2, "loss": None}]
    assert read_lines(path) == [{"step": 0, "loss": 0.5}, {"step": 1, "loss": 0.5}, *seen]


def test_a_folder_is_one_run_s_alone(tmp_path):
    folder = str(tmp_path / "run")
    check_folder(folder, "moe", resume=False)
    claim_folder(folder, "moe")
    check_folder(folder, "moe", resume=True)
    with pytest.raises(CedarError, match="holds the files of another run: run.json"):
        check_folder(folder, "moe", resume=False)
    with pytest.raises(CedarError, match="holds a run of the trainer 'moe', but this one is 'dlrm'"):
        check_folder(folder, "dlrm", resume=True)
