"""The corpus, and ten thousand changed copies of it; ``make fuzz`` continues from there."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.fuzz.run import Hung, attempt, case
from tests.fuzz.targets import TARGETS, corpus

pytestmark = pytest.mark.heavy

QUICK = [name for name in TARGETS if name != "checkpoint"]  # which needs torch, whose import takes as long as the rest


@pytest.mark.parametrize("name", TARGETS)
def test_the_corpus_is_read_or_refused_by_name(name: str) -> None:
    for data in corpus(name):
        TARGETS[name](data)


def test_ten_thousand_changed_inputs() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.fuzz.run", "--cases", "10000", "--only", *QUICK],
        capture_output=True, text=True, timeout=280, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
    assert " 0 findings" in done.stdout


def test_what_a_target_raises_is_a_finding() -> None:
    def broken(data: bytes) -> None:
        raise KeyError(data)

    def hangs(data: bytes) -> None:
        raise Hung

    assert attempt(broken, b"x") == "KeyError: b'x'"
    assert "more than" in str(attempt(hangs, b""))
    assert attempt(len, b"") is None  # type: ignore[arg-type]


def test_a_case_is_the_same_every_time_and_the_corpus_is_small() -> None:
    for name in TARGETS:
        seeds = corpus(name)
        assert case(name, seeds, 0) == seeds[0]
        assert [case(name, seeds, n) for n in range(90, 93)] == [case(name, seeds, n) for n in range(90, 93)]
        assert sum(map(len, seeds)) < 100_000
    assert os.path.isdir(os.path.dirname(__file__))
