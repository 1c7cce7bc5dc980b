"""Training on deduplicated rows against plain ones: ``python -m benchmarks.recommendation_training [--form]``.

Both train the same model on the same rows: 16 samples of a session in a batch, of which 95% repeat the one before.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from benchmarks.harness import Form
    from cedar.trainers.dlrm.options import Pooling

ROOT = Path(__file__).resolve().parents[1]
PARTS = ("sequence", "memory", "bags", "costs", "exact", "ranks")
SAMPLES, REPEATS, DENSE = 16, 0.95, 13
BATCHES = 4  # that steps go round


@dataclass(frozen=True)
class Shape:
    """A model's features: lengths of lists that are the session's, of those that are the row's, and of what they look
    up."""

    session: tuple[int, ...]
    own: tuple[int, ...]
    pooling: Pooling = "sum"
    rows: int = 100_000
    batch: int = 2048

    @property
    def names(self) -> list[str]:
        return [f"s{at}" for at in range(len(self.session))] + [f"o{at}" for at in range(len(self.own))]


SEQUENCE = Shape((50,) * 4, (1,) * 8, "transformer")
BAGS = {
    "18 lists of 20": (Shape((20,) * 18, (1,) * 8), 1.35),
    "8 histories of 50, 10 ids": (Shape((50,) * 8 + (1,) * 10, (1,) * 8), 1.6),
}


def batches(shape: Shape, count: int, seed: int = 1) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """Pairs of a deduplicated and a plain batch of the same rows."""
    import torch

    import cedar

    rng = np.random.default_rng(seed)
    found = []
    for _ in range(count):
        session = np.arange(shape.batch) // SAMPLES
        new = np.ones(shape.batch, dtype=bool)
        new[1:] = (np.diff(session) != 0) | (rng.random(shape.batch - 1) >= REPEATS)
        inverse = torch.from_numpy((np.cumsum(new) - 1).astype(np.int32))
        held = {f"s{at}": _lists(rng, int(inverse[-1]) + 1, n, shape) for at, n in enumerate(shape.session)}
        own = {f"o{at}": _lists(rng, shape.batch, n, shape) for at, n in enumerate(shape.own)}
        dense = torch.from_numpy(rng.normal(size=(DENSE, shape.batch)).astype(np.float32))
        rest: dict[str, Any] = {f"d{at}": dense[at] for at in range(DENSE)} | own
        rest["label"] = torch.from_numpy((rng.random(shape.batch) < 0.5).astype(np.float32))
        keys = tuple(held)
        group = cedar.InverseKeyedJaggedTensor(
            keys, {k: v.values for k, v in held.items()}, {k: v.offsets for k, v in held.items()}, inverse
        )
        found.append((rest | dict.fromkeys(keys, group), rest | group.expand()))
    return found


def _lists(rng: np.random.Generator, rows: int, length: int, shape: Shape) -> Any:
    import torch

    import cedar

    lengths = np.ones(rows, np.int64) if length == 1 else rng.poisson(length, rows)
    if shape.pooling != "sum" and length > 1:
        lengths = np.full(rows, length)
    offsets = torch.from_numpy(np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64))
    return cedar.JaggedTensor(torch.from_numpy(rng.integers(0, shape.rows, int(offsets[-1]))), offsets)


class EmbeddingBags:
    """The plain way in torch: an nn.EmbeddingBag of sparse gradients for each feature, and SGD."""

    def __init__(self, shape: Shape) -> None:
        import torch

        torch.sparse.check_sparse_tensor_invariants.disable()  # type: ignore[no-untyped-call]  # said, or torch warns
        self.bags = torch.nn.ModuleList(
            torch.nn.EmbeddingBag(shape.rows, 64, mode="sum", sparse=True, include_last_offset=True)
            for _ in shape.names
        )
        self.optimizer = torch.optim.SGD(self.bags.parameters(), lr=0.01)

    def begin(self, rate: float, step: int) -> None:
        self.optimizer.zero_grad()

    def lookup(self, bags: Any) -> list[Any]:
        return [table(b.ids, b.offsets) for table, b in zip(self.bags, bags, strict=True)]

    def update(self) -> None:
        self.optimizer.step()


class Training:
    """A DLRM, as the trainer steps it."""

    def __init__(self, shape: Shape, backend: str) -> None:
        import torch

        from cedar.trainers.dlrm.embeddings import summed
        from cedar.trainers.dlrm.fbgemm import FbgemmTables
        from cedar.trainers.dlrm.model import Model
        from cedar.trainers.dlrm.options import FeatureOptions, ModelOptions
        from cedar.trainers.dlrm.tables import Table, TorchTables

        long = {f"s{at}" for at, n in enumerate(shape.session) if n > 1}
        self.features = tuple(
            FeatureOptions(n, shape.rows, pooling=shape.pooling if n in long else "sum") for n in shape.names
        )
        tables = [Table(name, shape.rows) for name in shape.names]
        kinds: dict[str, Callable[[], Any]] = {
            "torch": lambda: TorchTables(tables, 64),
            "fbgemm": lambda: FbgemmTables(tables, 64),
            "bags": lambda: EmbeddingBags(shape),
        }
        self.tables: Any = kinds[backend]()
        torch.manual_seed(0)
        options = ModelOptions(width=64, bottom=(512, 256), top=(512, 256))
        look_up = partial(summed, features=self.features, lookup=self.tables.lookup)
        self.model = Model(options, self.features, DENSE, look_up)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01)
        self.steps = 0

    def step(self, batch: Mapping[str, Any]) -> float:
        import torch

        from cedar.trainers.dlrm.inputs import read_batch

        self.steps += 1
        inputs = read_batch(batch, self.features, [f"d{at}" for at in range(DENSE)], "label")
        self.tables.begin(0.01, self.steps)
        assert inputs.labels is not None
        loss = torch.nn.functional.binary_cross_entropy_with_logits(self.model(inputs), inputs.labels)
        self.optimizer.zero_grad()
        torch.autograd.backward(loss)
        self.tables.update()
        self.optimizer.step()
        return float(loss.detach())


def _step(training: Training, data: Any, which: int, number: int) -> float:
    return training.step(data[number % len(data)][which])


def _timed(fn: Callable[[], Any]) -> tuple[float, float]:
    wall, cpu = time.perf_counter(), time.process_time()
    fn()
    return time.perf_counter() - wall, time.process_time() - cpu


def _rounds(runs: Mapping[str, Callable[[int], Any]], rounds: int, warm_up: int = 2) -> dict[str, list[Any]]:
    """Wall and CPU seconds of each function in each round, in turns."""
    found: dict[str, list[Any]] = {name: [] for name in runs}
    names = list(runs)
    for number in range(rounds + warm_up):
        turn = number % len(names)
        for name in names[turn:] + names[:turn]:
            took = _timed(partial(runs[name], number))
            if number >= warm_up:
                found[name].append(took)
    return found


def _speed(slow: list[Any], fast: list[Any]) -> tuple[list[float], str]:
    wall = [a[0] / b[0] for a, b in zip(slow, fast, strict=True)]
    cpu = np.median([a[1] / b[1] for a, b in zip(slow, fast, strict=True)])
    before, after = (1000 * np.median([took[0] for took in runs]) for runs in (slow, fast))
    return wall, f"CPU {cpu:.2f}x; {before:.0f} to {after:.0f} ms"


def _shape(shape: Shape, form: Form) -> Shape:
    rows, batch = form.pick((shape.rows, shape.batch), (20_000, shape.batch), (1000, 64))
    return replace(shape, rows=rows, batch=batch)


def _factor(pair: tuple[dict[str, Any], dict[str, Any]]) -> float:
    return float(pair[0]["s0"].factor)


def sequence(form: Form) -> list[Any]:
    """Histories behind a transformer and attention: the whole step."""
    from benchmarks.harness import at_least

    shape = _shape(SEQUENCE, form)
    data, training = batches(shape, form.pick(BATCHES, 2)), Training(shape, "torch")
    runs = {name: partial(_step, training, data, which) for name, which in (("once", 0), ("plain", 1))}
    found = _rounds(runs, form.pick(9, 2, 1), 1)
    speed, note = _speed(found["plain"], found["once"])
    what = f"training step, 4 histories of 50 with attention, factor {_factor(data[0]):.1f}, against plain"
    return [at_least(what, 6.0, speed, "x", note=note)]


def memory(form: Form) -> list[Any]:
    """Growth of the peak of resident memory over two steps, each in its own process."""
    from benchmarks.harness import at_least, environment

    grown = {}
    for which in ("once", "plain"):
        command = [sys.executable, "-m", "benchmarks.recommendation_training", "--grow", which]
        out = subprocess.run(
            command + form.option, cwd=ROOT, env=environment(), capture_output=True, text=True, check=True
        )
        grown[which] = float(json.loads(out.stdout.splitlines()[-1]))
    note = f"{grown['plain']:.0f} to {grown['once']:.0f} MB over what data and tables take"
    return [
        at_least("memory of that step, plain over deduplicated", 4.0, [grown["plain"] / grown["once"]], "x", note=note)
    ]


def grow(which: str, form: Form) -> float:
    """Megabytes that two steps add to the peak."""
    shape = _shape(SEQUENCE, form)
    training = Training(shape, "torch")
    warm = replace(shape, batch=SAMPLES)
    training.step(batches(warm, 1)[0][0])  # libraries and threads
    pair = batches(shape, 1)[0]
    batch = pair[0 if which == "once" else 1]
    del pair
    Path("/proc/self/clear_refs").write_text("5")  # the peak is counted from here on (Linux)
    before = _status("VmRSS")
    for _ in range(2):
        training.step(batch)
    return (_status("VmHWM") - before) / 1024


def _status(what: str) -> int:
    """Kilobytes, as the kernel counts them."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith(what)).split()[1])


def bags(form: Form) -> list[Any]:
    """Summed bags: the whole step, by torch and by fbgemm."""
    from benchmarks.harness import at_least, at_most, reported
    from cedar.trainers.dlrm import fbgemm

    figures = []
    for what, (full, least) in BAGS.items():
        shape = _shape(full, form)
        data = batches(shape, form.pick(BATCHES, 2))
        backends = ["torch", "bags"] + ["fbgemm"] * (fbgemm.module_or_reason()[0] is not None)
        trainings = {backend: Training(shape, backend) for backend in backends}
        runs = {
            f"{backend} {name}": partial(_step, trainings[backend], data, which)
            for backend in backends
            for name, which in (("once", 0), ("plain", 1))
            if (backend, name) != ("bags", "once")
        }
        found = _rounds(runs, form.pick(15, 4, 1))
        speed, note = _speed(found["bags plain"], found["torch once"])
        label = f"training step, {what}, torch, against plain nn.EmbeddingBag"
        figures.append(at_least(label, least, speed, "x", note=note))
        speed, note = _speed(found["torch plain"], found["torch once"])
        figures.append(reported(f"training step, {what}, torch, against plain in the same code", speed, "x", note=note))
        if "fbgemm" in trainings:
            speed, note = _speed(found["fbgemm plain"], found["fbgemm once"])
            figures.append(at_least(f"training step, {what}, fbgemm, against plain", 1.08, speed, "x", note=note))
            speed, note = _speed(found["torch once"], found["fbgemm once"])
            label = f"training step, {what}, deduplicated, torch over fbgemm"
            figures.append(at_most(label, 1.15, speed, "x", note=note))
            speed, note = _speed(found["torch plain"], found["fbgemm plain"])
            figures.append(reported(f"training step, {what}, plain, torch over fbgemm", speed, "x", note=note))
    return figures


def exact(form: Form) -> list[Any]:
    """With and without deduplication, on the same order of rows."""
    from benchmarks.harness import at_most
    from benchmarks.recommendation_exact import compared

    steps = form.pick(200, 40, 4)
    found = compared(steps)
    names = {
        "fp64": (f"float64, {steps} steps: losses and weights differ by", 1e-10, ""),
        "first": ("float32: the loss of the first step differs by", 1e-6, ""),
        "last": (f"float32: the loss of step {steps} differs by", 1e-4, "of it"),
        "auc": ("float32: the AUC on held-out rows differs by", 1e-4, ""),
        "fbgemm": (f"fbgemm, float32: the loss of step {steps} differs by", 1e-4, "of it"),
    }
    return [at_most(names[key][0], names[key][1], [value], names[key][2]) for key, value in found.items()]


def ranks(form: Form) -> list[Any]:
    """Several ranks against one on the same batches; what they send; a checkpoint of four on one, two and four."""
    from benchmarks.harness import at_most
    from benchmarks.recommendation_exact import across_ranks, resharded, traffic_ratio

    figures = []
    with tempfile.TemporaryDirectory() as folder:
        for count in form.pick((2, 4), (2,)):
            found = across_ranks(folder, count, form.pick(100, 20, 2))
            figures.append(
                at_most(f"{count} ranks against one, float64: losses and weights differ by", 1e-10, [found], "")
            )
        sent, factor = traffic_ratio(folder)
        note = f"factor {factor:.2f}, bytes fall {sent:.2f}x"
        figures.append(
            at_most(
                "bytes between 2 ranks fall by the factor; off by", 0.15, [abs(sent / factor - 1)], "of it", note=note
            )
        )
        for before, after in form.pick(((4, 2), (2, 4), (4, 1)), ((2, 1),)):
            worst = resharded(folder, before, after)
            figures.append(
                at_most(f"a checkpoint of {before} rank(s) on {after}: losses differ by", 1e-10, [worst], "")
            )
    return figures


def costs(form: Form) -> list[Any]:
    """What the planner says that tables cost against CPU seconds of a lookup, its gradient and the update, less
    those of a single id.
    """
    import torch

    from benchmarks.harness import at_most
    from cedar.trainers.dlrm.sharding import FeatureStatistics
    from cedar.trainers.dlrm.tables import Bags, Table, TorchTables

    def seconds(tables: TorchTables, ids: torch.Tensor, length: int) -> float:
        began = time.process_time()
        tables.begin(0.01, 1)
        found: Any = tables.lookup([Bags("t", ids, torch.arange(len(ids) // length + 1) * length)])[0]
        found.sum().backward()
        tables.update()
        return time.process_time() - began

    torch.set_num_threads(1)
    draw, said, measured = np.random.default_rng(0), [], []
    for _ in range(form.pick(60, 12, 3)):
        rows, width = int(10 ** draw.uniform(3, form.pick(6.3, 5.5))), int(draw.choice((8, 16, 32, 64)))
        lists, length, skew = int(draw.choice((1024, 4096))), int(draw.integers(1, 30)), draw.uniform(1.05, 2.0)
        tables = TorchTables([Table("t", rows)], width)
        given = [torch.from_numpy(draw.zipf(skew, lists * length) % rows) for _ in range(form.pick(7, 4))]
        alone = statistics.median(seconds(tables, given[0][:1], 1) for _ in given)
        measured.append(statistics.median([seconds(tables, ids, length) for ids in given][1:]) - alone)
        distinct = statistics.fmean(len(torch.unique(ids)) for ids in given)
        said.append(FeatureStatistics("t", lists * length, distinct).cost(width))
    ratios = np.array(measured) / said
    off = 100 * np.abs(np.median(ratios) / ratios - 1)
    order = np.corrcoef(np.array([np.argsort(np.argsort(values)) for values in (said, measured)]))[0, 1]
    note = f"{len(said)} tables of 10^3 to 10^6 rows; rank correlation {order:.3f}"
    label = "the planner's costs of tables against CPU seconds, off by"
    return [at_most(label, 30, off.tolist(), "%", note=f"{note}; {np.median(ratios) * 1e9:.1f} ns a value")]


def main(arguments: list[str] | None = None) -> int:
    """Measure, print a table, write benchmarks/out/recommendation_training.json; 1 if a target was missed."""
    from benchmarks import harness

    parser = argparse.ArgumentParser(description=__doc__)
    harness.add_form(parser, "smaller tables and fewer rounds")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=PARTS, metavar="PART", help=", ".join(PARTS))
    parser.add_argument("--grow", choices=("once", "plain"), help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.grow:
        print(grow(options.grow, options.form))
        return 0
    parts = {"sequence": sequence, "memory": memory, "bags": bags, "costs": costs, "exact": exact, "ranks": ranks}
    figures = [figure for part in options.only for figure in parts[part](options.form)]
    name = "recommendation_training" if options.only == PARTS else "recommendation_training_part"
    return harness.finish("training on deduplicated rows", name, figures, options.form)


if __name__ == "__main__":
    sys.exit(main())
