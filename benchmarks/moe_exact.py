"""Measured on ranks that are processes of this machine: exactness, bytes, sparse checkpoints, loss of a rank."""

from __future__ import annotations

import random
import tempfile
import time
import timeit
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from statistics import fmean, pstdev
from typing import Any

from benchmarks import harness
from benchmarks.harness import Figure, Form
from cedar.core.errors import CedarError
from cedar.trainers.common.windows import plan_window, step_bytes
from cedar.trainers.moe.options import DataOptions, ExpertOptions, ModelOptions, OptimizerOptions, Options, RunOptions
from cedar.trainers.moe.placement import minmax, paper, place

_TESTS = (
    "toy_crew", "trainers.moe.toy_text", "trainers.moe.test_oracle", "trainers.moe.test_sparse",
    "trainers.moe.test_loss_of_ranks", "trainers.moe.toy_reference",
)  # fmt: skip
crews, texts, oracle, sparse, lost, reference = (import_module(f"tests.{name}") for name in _TESTS)


@contextmanager
def crew(ranks: int) -> Iterator[tuple[Any, Path]]:
    """Ranks with their own folder."""
    with tempfile.TemporaryDirectory() as folder:
        found = crews.Crew(ranks, Path(folder))
        try:
            yield found, Path(folder)
        finally:
            found.stop()


# ---- exactness -------------------------------------------------------------------------------------------------------


def against_oracle(form: Form) -> list[Figure]:
    """Twenty steps against one process with plain loops; see tests/trainers/moe/test_oracle.py."""
    rows = []
    for ranks in form.pick((2, 4, 8), (2, 4), (2,)):
        with crew(ranks) as (found, _):
            for dtype, limit in (("float64", 1e-10), ("float32", 1e-5)):
                worst = max(max(_compared(found, name, ranks, dtype)[0].values()) for name in _cases(form))
                what = f"20 steps against one process, {ranks} ranks, {dtype}: largest difference"
                rows.append(harness.at_most(what, limit, [worst], "", note="routing, drops, placements identical"))
            ulps = max(_compared(found, name, ranks, "bfloat16", rate=1e-4)[3] for name in _cases(Form.QUICK))
            what = f"each step from equal state, {ranks} ranks, bfloat16: largest difference"
            rows.append(harness.at_most(what, 2, [ulps], "ulp", note="weights and outputs, learning rate 1e-4"))
    return rows


def _cases(form: Form) -> list[str]:
    return list(oracle.CASES)[: form.pick(None, 1)]


def _compared(found: Any, name: str, ranks: int, dtype: str, rate: float | None = None) -> Any:
    case = oracle.CASES[name]
    tokens = [case["tokens"][rank % 4] for rank in range(ranks)]
    slots = max(case["slots"] * 4 // ranks, -(-case["experts"] // ranks))
    changes: dict[str, Any] = {"dtype": dtype, "tokens": tokens, "slots": slots}
    if rate is not None:
        changes["optimizer"] = case["optimizer"] | {"rate": rate}
    return oracle.compared(found, case | changes, ranks, forced=rate is not None)


# ---- placement -------------------------------------------------------------------------------------------------------


def placement(_form: Form) -> list[Figure]:
    """64 experts in 4,096 slots."""
    numbers = random.Random(0)
    shapes = {
        "a power law": [10**6 // (at + 1) for at in range(64)],
        "one expert takes all": [10**9] + [0] * 63,
        "random": [numbers.randrange(10**6) for _ in range(64)],
    }
    rows = []
    for rule in (paper, minmax):
        times = [
            1000 * min(timeit.repeat(partial(rule, popularity, 4096), number=20, repeat=5)) / 20
            for popularity in shapes.values()
        ]
        note = f"slowest of {', '.join(shapes)}"
        rows.append(
            harness.at_most(f"placement, {rule.__name__}, 64 experts, 4,096 slots", 1.0, [max(times)], "ms", note=note)
        )
    return rows


# ---- bytes -----------------------------------------------------------------------------------------------------------


def byte_counts(form: Form) -> list[Figure]:
    """What a step sends, counted where it is sent, against the formula."""
    ranks, slots, experts = form.pick(4, 4, 2), 4, 8
    steps = form.pick(40, 10, 3)
    rows = []
    with crew(ranks) as (found, folder):
        chosen = _model(texts.write_text(folder / "text.txt"), slots, experts)
        records = found.run(lost.trained_records, chosen, steps)[0]
    size, wrong, most = 2 * 64 * 128, 0, 0
    for now, then in pairwise(records):
        for layer, after in zip(now.layers, then.layers, strict=True):
            wrong += layer.sent["gradients"] != reference.exchange_bytes(
                reference.spread(layer.replicas, ranks, slots), size, 4, ranks
            )
            wrong += layer.sent["weights"] != reference.exchange_bytes(
                reference.spread(after.replicas, ranks, slots), size, 2, ranks
            )
            most = max(most, layer.sent["weights"])
    bound = ranks * slots * size * 2 * (ranks - 1) // ranks
    what = "bytes of gradients and weights that differ from sum of h X (N - 1) / N"
    rows.append(harness.at_most(what, 0, [wrong], "steps", note=f"{steps} steps, 2 layers, placements change"))
    rows.append(
        harness.at_most("most bytes of weights in a layer and step, over s N X (N - 1) / N", 1, [most / bound], "x")
    )
    even = place([0] * experts, ranks, slots).replicas
    spread = [min(count, ranks) for count in even]
    for phase, itemsize in (("gradients", 4), ("weights", 2)):
        measured = [layer.sent[phase] / 1000 for record in records for layer in record.layers]
        rows.append(harness.reported(f"{phase} of a layer, a step, symi", measured, "kB"))
        for name, held in (("aligned", reference.spread(even, ranks, slots)), ("spread", spread)):
            static = reference.exchange_bytes(held, size, itemsize, ranks) / 1000
            rows.append(harness.reported(f"{phase} of a layer, a step, static {name}", [static], "kB", how="simulated"))
    tokens = [layer.sent["tokens"] / 1000 for record in records for layer in record.layers]
    rows.append(harness.reported("tokens of a layer, a step, there and back, forward and backward", tokens, "kB"))
    return rows


def _model(text: str, slots: int, experts: int, dtype: Any = "bfloat16") -> Options:
    return Options(
        DataOptions(text, length=32, batch=12, held_out=0),
        ModelOptions(layers=2, width=64, heads=4),
        ExpertOptions(experts, slots, 128, aux_loss=1e-3),
        OptimizerOptions(rate=2e-3, schedule="constant"),
        RunOptions(folder="", dtype=dtype, device="cpu"),
    )


# ---- sparse checkpoints ----------------------------------------------------------------------------------------------


def sparse_checkpoints(form: Form) -> list[Figure]:
    """The largest step of a window over a dense checkpoint, and how long it takes to recover."""
    rows = []
    windows = ((3, 0.5), (8, 0.3))
    for window, limit in form.pick(windows, windows, windows[:1]):
        with crew(2) as (found, folder):
            text = texts.write_text(folder / "text.txt")
            chosen = _model(text, 8, 16, dtype="bfloat16")
            chosen = replace(chosen, optimizer=replace(chosen.optimizer, clip=0.2))
            steps = 2 * window
            stops = form.pick(range(window, steps + 1), (window, steps))
            equal, records, saved = found.run(
                sparse.recovered, chosen, str(folder / "run"), window, steps, (window // 2,), stops
            )[0]
            seconds = [max(found.run(timed_recovery, chosen, str(folder / "run"), window, steps)) for _ in range(3)]
        sizes = saved_values(chosen, 2)
        dense = 12 * sum(sizes)
        formula = max(step_bytes(sizes, plan_window(sizes, window), at) for at in range(window))
        rows.append(
            harness.at_most(f"largest step of a window of {window}, over a dense one", limit, [max(saved) / dense], "x")
        )
        rows.append(
            harness.at_most(f"bytes beyond the formula, window of {window}", 0, [max(saved) - formula], "bytes")
        )
        note = f"{len(equal)} stops, {sum(r.skipped for r in records)} skipped, clipping, placements change"
        rows.append(
            harness.at_least(
                f"recovered states that are bitwise equal, window of {window}", 1, [fmean(equal)], "", note=note
            )
        )
        plain = fmean(record.seconds for record in records)
        rows.append(harness.reported(f"recovery, window of {window}", seconds, "s", note=f"a step takes {plain:.3f} s"))
    return rows


def timed_recovery(group: Any, options: Options, folder: str, window: int, until: int) -> float:
    """Seconds that a rank takes to recover."""
    from cedar.trainers.moe.sparse import SparseCheckpoints
    from cedar.trainers.moe.trainer import Trainer

    trainer = Trainer(options, group)
    with SparseCheckpoints(folder, trainer, window, keep=99) as checkpoints:
        began = time.perf_counter()
        checkpoints.recover(until)
    trainer.close()
    return time.perf_counter() - began


def saved_values(options: Options, ranks: int) -> list[int]:
    """Values of each operator on one rank: experts first, then what all ranks hold."""
    from cedar.trainers.common.group import Group
    from cedar.trainers.moe.trainer import Trainer

    trainer = Trainer(replace(options, experts=replace(options.experts, slots=options.experts.experts)), Group())
    dense, *experts = [part.shards for part in trainer.optimizer.parts]
    trainer.close()
    return [-(-len(part) // ranks) for shards in (*experts, dense) for part in shards.slices]


# ---- a rank is lost --------------------------------------------------------------------------------------------------


def loss_of_a_rank(form: Form) -> list[Figure]:
    """A rank is killed at a random step; the others continue, with fewer slots, on the same global batches."""
    ranks, after, seeds = form.pick((4, 50, 5), (4, 8, 3), (3, 5, 1))
    at = random.Random().randint(4, 9)
    with crew(ranks) as (found, folder):
        text = texts.write_text(folder / "text.txt", lines=3000)
        chosen = _model(text, 4, 8, dtype="float32")
        first = found.run(lost.trained, chosen, str(folder / "run"), 2, at, at + after, lost={2})[0]
        with crew(ranks - 1) as (fewer, _):
            second = fewer.run(lost.trained, chosen, str(folder / "run"), -1, -1, at + after)[0]
            refusal = fewer.run(sparse_slots, chosen)[0]
        ends = []
        whole: Any = None
        for seed in range(seeds):
            alone = replace(
                chosen, run=replace(chosen.run, seed=seed), experts=replace(chosen.experts, slots=4 * ranks)
            )
            with crew(1) as (one, _):
                run = one.run(lost.trained, alone, str(folder / f"whole {seed}"), -1, -1, at + after)[0]
            ends.append(fmean(run[1][-5:]))
            whole = whole or run
    batches = first[2][: second[0]] + second[2]
    same = sum(bool((a == b).all()) for a, b in zip(batches, whole[2], strict=True)) / len(whole[2])
    end = fmean(second[1][-5:])
    spread = max(abs(end - fmean(ends)) / max(3 * pstdev(ends), 1e-9), 0)
    note = (
        f"killed at step {at}; loss {end:.4f}, {seeds} seeds without a loss of ranks {min(ends):.4f} to {max(ends):.4f}"
    )
    return [
        harness.at_least("global batches that are those of an unbroken run", 1, [same], "", note="every token once"),
        harness.at_most(f"loss {after} steps later: distance from the seeds' mean", 1, [spread], "3 sigma", note=note),
        Figure(
            "(N - 1) s < E",
            "an error",
            float(refusal is not None),
            "",
            refusal is not None,
            note=str(refusal).split("\n")[0],
        ),
    ]


def sparse_slots(group: Any, options: Options) -> str | None:
    """What a run with too few slots says."""
    from cedar.trainers.moe.trainer import Trainer

    try:
        Trainer(replace(options, experts=replace(options.experts, slots=2)), group)
    except CedarError as error:
        return str(error)
    return None
