"""Runs in their own processes, by the command, and what they should come to."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from cedar.trainers.common import config
from cedar.trainers.resilient.options import Options
from cedar.trainers.resilient.pipeline import Workers
from cedar.trainers.resilient.text import text_pipeline
from tests.how_much import LONG

TAKES_MINUTES = pytest.mark.skipif(not LONG, reason="takes minutes: make test-long runs it")


def reference(path: Path, changes: list[str]) -> dict[int, str]:
    """The digest of each stage's weights after a run in one process, without schedules, groups and failures."""
    from cedar.trainers.resilient.member import digest
    from cedar.trainers.resilient.model import AdamW, Engine

    options = config.load(str(path), Options, changes)
    pipeline = text_pipeline(options, 2, Workers(2))
    engines = [
        Engine(pipeline.module(at), at, 2, pipeline.loss, tied=pipeline.shared.names.get(at), share=1 / 4)
        for at in range(2)
    ]
    states = [engine.initial_state for engine in engines]
    optimizer = AdamW(options.optimizer, options.run.steps)
    data = pipeline.open()
    shared = engines[0].layout.tied
    for step in range(options.run.steps):
        totals = [torch.zeros(engine.layout.size) for engine in engines]
        for engine, state in zip(engines, states, strict=True):
            engine.load(state)
        for key in ((0, 0), (0, 1), (1, 0), (1, 1)):
            sent = engines[0].forward(step, key, data.inputs(step, key), None)
            engines[1].forward(step, key, sent, data.targets(step, key))
            engines[0].backward_input(key, engines[1].backward_input(key, None))
            rows = [engine.backward_weight(key) for engine in engines]
            for stage in range(2):
                totals[stage][shared:] += rows[stage][shared:]
                totals[stage][:shared] += rows[0][:shared]
                totals[stage][:shared] += rows[1][:shared]
        norms = [float((totals[0] ** 2).sum()), float((totals[1][shared:] ** 2).sum())]
        scale = optimizer.scale(norms)
        states = [optimizer.step(s, t, e.layout, scale) for s, t, e in zip(states, totals, engines, strict=True)]
    data.close()
    return {stage: digest(state) for stage, state in enumerate(states)}


def started(path: Path, *arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "cedar", "train", "resilient", str(path), *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def ended(process: subprocess.Popen[str], seconds: float = 300) -> str:
    try:
        out, err = process.communicate(timeout=seconds)
    finally:
        process.kill()
    assert process.returncode == 0, out + err
    return out


def describe(tmp_path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((tmp_path / "run" / "report.json").read_text())
    return found


def check(record: dict[str, Any], expected: dict[int, str], workers: int | None = None) -> None:
    stages = {worker: expected[int(worker[1])] for worker in record["ended"]}
    assert {worker: one["digest"] for worker, one in record["ended"].items()} == stages
    assert workers is None or len(stages) == workers
