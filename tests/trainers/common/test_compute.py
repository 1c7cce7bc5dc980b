"""Devices by name, random numbers by key, AdamW as it is published, attention row by row."""

from __future__ import annotations

import subprocess
import sys
import time

import pytest
import torch

from cedar.core.errors import CedarError
from cedar.trainers.common.compute import Attention, adamw, ask_fork, device_of, generator, keyed


@pytest.mark.parametrize(
    ("name", "told"),
    [("gpu", "run.device is 'gpu'"), ("meta", "which cedar does not support"), ("cuda:99", "but torch sees")],
)
def test_a_device_that_cannot_be_computed_on_is_refused(name, told):
    with pytest.raises(CedarError, match=told):
        device_of(name)


@pytest.mark.parametrize("name", ["auto", "cpu", "cuda"])
def test_asking_for_a_device_leaves_cuda_to_processes_that_are_forked_later(name):
    program = (
        "import torch; from contextlib import suppress; from cedar.core.errors import CedarError\n"
        "from cedar.trainers.common.compute import ask_fork, device_of\n"
        f"with suppress(CedarError): device_of({name!r})\n"
        "print(ask_fork(torch.cuda._is_in_bad_fork))"
    )  # in its own process, in which no other test has asked for CUDA
    assert subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True).stdout == "0\n"


def test_gpus_are_seen(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    assert (str(device_of("auto")), str(device_of("cuda:2"))) == ("cuda", "cuda:2")
    with pytest.raises(CedarError, match="run.device is 'cuda:3', but torch sees 3 GPU"):
        device_of("cuda:3")


def test_a_question_that_fails_in_the_fork_is_answered_with_nothing():
    assert ask_fork(lambda: 1 // 0) == 0


def test_a_forked_process_that_hangs_is_killed_and_answers_nothing(monkeypatch):
    monkeypatch.setattr("cedar.trainers.common.compute._ASK_SECONDS", 0.1)
    assert ask_fork(lambda: time.sleep(600) or 1) == 0


def test_what_is_drawn_by_a_key_depends_on_nothing_else():
    torch.manual_seed(5)
    plain = torch.rand(2)
    torch.manual_seed(5)
    with keyed("cpu", 0, "a"):
        drawn = torch.rand(3)
    assert torch.equal(torch.rand(2), plain)  # what is drawn later is as if nothing had been drawn
    assert torch.equal(torch.rand(3, generator=generator("cpu", 0, "a")), drawn)
    assert not torch.equal(torch.rand(3, generator=generator("cpu", 0, "b")), drawn)


def published(weight, gradients, rate, decay):
    """AdamW as it is printed, a number by itself."""
    first = second = 0.0
    for step, gradient in enumerate(gradients, 1):
        first, second = 0.9 * first + 0.1 * gradient, 0.95 * second + 0.05 * gradient**2
        change = first / (1 - 0.9**step) / ((second / (1 - 0.95**step)) ** 0.5 + 1e-8)
        weight -= rate * (change + decay * weight)
    return weight


def test_adamw_is_the_published_one_also_with_a_rate_for_each_weight():
    start, gradients = torch.randn(2, 3, dtype=torch.float64), torch.randn(4, 2, 3, dtype=torch.float64)
    rate, weights = torch.tensor([[0.1], [0.05]], dtype=torch.float64), start.clone()
    moments = torch.zeros_like(start), torch.zeros_like(start)
    for step, gradient in enumerate(gradients, 1):
        adamw(weights, *moments, gradient, rate=rate, decay=0.2, betas=(0.9, 0.95), eps=1e-8, step=step)
    for row in range(2):
        for at in range(3):
            one = published(float(start[row, at]), gradients[:, row, at].tolist(), float(rate[row]), 0.2)
            assert float(weights[row, at]) == pytest.approx(one, rel=1e-9)


@pytest.mark.parametrize("causal", [True, False])
def test_rows_of_several_lengths_see_what_each_sees_alone(causal):
    attention = Attention(8, 2, bias=(True, True), causal=causal).double()
    lengths = [(2, 3), (1, 0), (1, 5)]  # how many rows of which length
    rows = [torch.randn(length, 8, dtype=torch.float64) for many, length in lengths for _ in range(many)]
    found = attention(torch.cat(rows), lengths).split([len(row) for row in rows])
    for row, one in zip(rows, found, strict=True):
        if len(row):
            assert torch.allclose(one, attention(row[None])[0], atol=1e-12)
    changed = rows[3].clone()
    changed[-1] += 1.0
    same = torch.isclose(attention(changed[None])[0], found[3], atol=1e-12).all(1)
    assert same.tolist() == [causal] * 4 + [False]
