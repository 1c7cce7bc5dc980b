"""Runs of a trainer: they stop and continue, keep to their folder, and say how far they are."""

from functools import partial
from unittest import mock

import pytest

from cedar.core.errors import CedarError
from cedar.trainers.common.files import MetricsFile, read_lines
from cedar.trainers.common.run import run as run_trainer
from cedar.trainers.moe.trainer import Trainer
from tests.trainers.moe.toy_text import settings, write_text

run = partial(run_trainer, Trainer)


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    return write_text(tmp_path_factory.mktemp("text") / "text.txt", lines=80)


def facts(line):
    """What does not depend on the clock."""
    kept = {key: value for key, value in line.items() if key not in ("seconds", "layers")}
    return kept | {"layers": [{k: v for k, v in layer.items() if k != "seconds"} for layer in line["layers"]]}


@pytest.mark.heavy
@pytest.mark.parametrize("window", [0, 2])
@pytest.mark.parametrize("told", [True, False])
def test_a_run_that_stopped_goes_on_to_the_same_end(text, tmp_path, window, told):
    """Not ``told``: before the line of the last step was written, whose scores the run that continued left out."""
    whole = read_lines(run(settings(text, tmp_path / "whole", sparse_window=window), quiet=True))
    begun = settings(text, tmp_path / "part", sparse_window=window)
    with pytest.raises(KeyboardInterrupt):
        run_until(begun, 4, told=told)
    part = read_lines(str(tmp_path / "part" / "metrics.jsonl"))
    assert len(part) == 3 + told
    path = run(begun, resume=True, quiet=True)
    assert [facts(line) for line in read_lines(path)] == [facts(line) for line in whole]


@pytest.mark.heavy
def test_a_new_run_does_not_begin_where_another_has_left_checkpoints(text, tmp_path):
    """A later --resume would take the old ones, which may be further, for its own."""
    run(settings(text, tmp_path, sparse_window=0, steps=3), quiet=True)
    with pytest.raises(CedarError, match="holds the files of another run: checkpoints, metrics.jsonl, run.json"):
        run(settings(text, tmp_path, sparse_window=0, steps=3), quiet=True)


@pytest.mark.heavy
def test_ranks_that_see_other_folders_do_not_go_on(crew, text, tmp_path):
    """Rank 1 has no checkpoint, as on a machine that does not share the folder."""
    run(settings(text, tmp_path / "0", steps=2, sparse_window=0), quiet=True)
    for said in crew.run(resumed_apart, [settings(text, tmp_path / str(rank)) for rank in range(2)], ranks=2):
        assert "ranks disagree: [1] differ from rank 0 in the newest checkpoint" in said


def resumed_apart(group, options):
    try:
        run(options[group.rank], group, resume=True, quiet=True)
    except CedarError as error:
        return str(error)


def run_until(options, steps, *, told=True):
    """A run that ends after so many steps, as by Ctrl-C."""
    write = MetricsFile.write

    def write_and_stop(file, record):
        if told or record.step + 1 < steps:
            write(file, record)
        if record.step + 1 == steps:
            raise KeyboardInterrupt

    with mock.patch.object(MetricsFile, "write", write_and_stop):
        run(options, quiet=True)
