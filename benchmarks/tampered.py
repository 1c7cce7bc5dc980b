"""States and plans that someone changed: each is refused by name, or does no harm.

``python -m benchmarks.tampered`` changes 50,000 states (with the checksum rebuilt, as one who wants to would) and as
many plans, loads each and runs on from it; ``--quick`` a hundredth of it. What ends in anything but an error of cedar's
is told, with the change that brought it about.
"""

from __future__ import annotations

import argparse
import copy
import json
import random
import signal
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import cedar
from cedar.core.errors import CedarError
from cedar.engine.delivery.state import seal

ODD: list[Any] = [
    None, True, False, 0, 1, -1, 2, 7, 10**6, 2**63, -(2**63), 10**30, 0.5, -0.0, 1e300, "", "x", "0", "-1", "\ud800",
    [], [0], [0, 0], [None, None], [[0, 0], 0], [[], []], {}, {"0": 0}, {"x": None}, [[[[[]]]]], "done",
]  # fmt: skip
SECONDS = 10  # that one may take


def _items(n: int = 60) -> cedar.Pipeline:
    return cedar.from_items([{"x": i, "s": f"w{i}"} for i in range(n)])


def _bucket(x: int) -> int:
    return x


PIPELINES: dict[str, Callable[[], cedar.Pipeline]] = {
    "batch": lambda: _items().batch(4),
    "shuffle": lambda: _items().shuffle(seed=1, window=16).batch(4, last="keep"),
    "filter": lambda: _items().filter(_odd, "x").batch(4, last="keep"),
    "repeat": lambda: _items(20).repeat(3).shuffle(window=8).batch(4),
    "concat": lambda: cedar.concat(_items(20), _items(30).take(9)).batch(4, last="keep"),
    "zip": lambda: cedar.zip(_items(40), _items(40).rename({"x": "y", "s": "t"})).batch(4),
    "mix": lambda: cedar.mix([(_items(30), 0.3), (_items(30), 0.7)]).batch(4),
    "take": lambda: _items().filter(_odd, "x").skip(2).take(15).batch(4, last="keep"),
    "rows": lambda: _items().filter(_odd, "x"),
    "flat": lambda: _items().flat_map(_twice, "x").shuffle(window=20).batch(4),
    "bucket": lambda: _items().map(_list, "x", into="l").bucket_by_length("l", boundaries=[2], batch_sizes=[3, 2]),
    "pack": lambda: _items().map(_list, "x", into="l").select("l").pack(8, "l").batch(2),
    "sample": lambda: _items().sample(n=30, seed=2).batch(4),
}


def _odd(x: int) -> bool:
    return x % 2 == 1


def _list(x: int) -> list[int]:
    return list(range(1 + x % 4))


def _twice(x: int) -> list[dict[str, int]]:
    return [{"z": x}, {"z": -x}]


@dataclass
class Tally:
    """What became of what was changed."""

    refused: int = 0
    harmless: int = 0
    odd: dict[str, tuple[int, str]] = field(default_factory=dict)

    def note(self, told: str | None, example: str) -> None:
        if told is not None:
            self.odd[told] = (self.odd.get(told, (0, ""))[0] + 1, example)


class TooLong(BaseException):
    """What was changed makes a run continue for too long."""


def _late(*_: Any) -> None:
    raise TooLong


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The way to each value of a JSON text."""
    yield path
    for key in value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ():
        yield from places(value[key], (*path, key))


def tampered(value: Any, rng: random.Random) -> tuple[Any, str]:
    """A copy with one to three changes, and what they are."""
    made, told = copy.deepcopy(value), []
    for _ in range(rng.choice([1, 1, 2, 3])):
        path = rng.choice([p for p in places(made) if p] or [()])
        if not path:
            return rng.choice(ODD), "all of it"
        inner = made
        for key in path[:-1]:
            inner = inner[key]
        old = inner[path[-1]]
        kind = rng.randrange(8)
        if kind == 0:
            del inner[path[-1]]
            told.append(f"{path} gone")
        elif kind == 1 and isinstance(old, list) and old:
            old.append(copy.deepcopy(rng.choice(old)))
            told.append(f"{path} longer")
        elif kind <= 3 and isinstance(old, int):
            inner[path[-1]] = old + rng.choice([-1, 1, 5, 1000, -1000])
            told.append(f"{path} {old} -> {inner[path[-1]]}")
        else:
            inner[path[-1]] = copy.deepcopy(rng.choice(ODD))
            told.append(f"{path} {old!r:.40} -> {inner[path[-1]]!r}")
    return made, "; ".join(told)


def outcome(work: Callable[[], Any], tally: Tally, example: str) -> None:
    """Runs ``work``, and notes how it ends."""
    signal.signal(signal.SIGALRM, _late)
    signal.alarm(SECONDS)
    try:
        work()
        tally.harmless += 1
    except CedarError as error:
        tally.refused += 1
        tally.note(None if error.fix or error.what else "an error without words", example)
    except TooLong:
        tally.note(f"took more than {SECONDS} s", example)
    except Exception as error:  # noqa: BLE001 - which are raised is what is measured
        frame = traceback.extract_tb(error.__traceback__)[-1]
        tally.note(
            f"{type(error).__name__}: {str(error)[:60]} ({frame.filename.rpartition('/')[2]}:{frame.lineno})", example
        )
    finally:
        signal.alarm(0)


def _resealed(state: dict[str, Any], rng: random.Random) -> tuple[Any, str]:
    changed, told = tampered({k: v for k, v in state.items() if k != "check"}, rng)
    if isinstance(changed, dict):
        try:
            changed = seal(changed)
        except (TypeError, ValueError):
            changed["check"] = "x"
    return changed, told


def _packed(state: dict[str, Any]) -> dict[str, Any]:
    """The same after a change from 2,048 ranks that had taken nothing, which makes it a large one."""
    state = {name: value for name, value in state.items() if name != "check"}
    opened = {number: entry | {"history": [[2048, 1, [0] * 2048]]} for number, entry in state["open"].items()}
    return seal(state | {"open": opened})


def states(count: int, seed: int = 0) -> Tally:
    """Changed states, loaded and run on from."""
    tally, rng = Tally(), random.Random(seed)
    whole: list[tuple[cedar.Pipeline, dict[str, Any]]] = []
    merged: list[tuple[cedar.Pipeline, list[dict[str, Any]]]] = []  # of two ranks, for three to continue from
    for make in PIPELINES.values():
        pipeline = make()
        for taken in (0, 1, 3):
            loader = pipeline.loader(executor="inline", plan="off", seed=3)
            for _ in islice(iter(loader), taken):
                pass
            whole.append((pipeline, loader.state_dict()))
            loader.close()
        whole.append((pipeline, _packed(whole[-1][1])))
        for taken in (0, 2):
            ranks = [pipeline.loader(executor="inline", plan="off", seed=3, rank=r, world=2) for r in range(2)]
            for loader in ranks:
                for _ in islice(iter(loader), taken):
                    pass
            merged.append((pipeline, [loader.state_dict() for loader in ranks]))
            for loader in ranks:
                loader.close()
    for _ in range(count):
        if rng.random() < 0.7:
            pipeline, state = rng.choice(whole)
            changed, told = _resealed(state, rng)
            world = 1
        else:
            pipeline, pair = rng.choice(merged)
            parts = [_resealed(state, rng) if rng.random() < 0.7 else (state, "as it was") for state in pair]
            changed, told, world = [part for part, _ in parts], str([told for _, told in parts]), 3

        def run(pipeline: cedar.Pipeline = pipeline, changed: Any = changed, world: int = world) -> None:
            with pipeline.loader(executor="inline", plan="off", seed=3, rank=0, world=world) as loader:
                loader.load_state_dict(changed)
                for _ in islice(iter(loader), 20):
                    pass
                loader.state_dict()

        outcome(run, tally, told)
    return tally


def plans(count: int, seed: int = 0) -> Tally:
    """Changed plans, loaded; the first of those that fit are run, too."""
    tally, rng = Tally(), random.Random(seed)
    whole = []
    for make in PIPELINES.values():
        pipeline = make()
        with pipeline.loader(executor="inline", plan="off") as loader:
            whole.append((pipeline, json.loads(cedar_text(loader.plan))))
    for number in range(count):
        pipeline, plan = rng.choice(whole)
        changed, told = tampered(plan, rng)
        text = json.dumps(changed)

        def run(pipeline: cedar.Pipeline = pipeline, text: str = text, drain: bool = number % 10 == 0) -> None:
            from cedar.plan.saved import plan_from

            loaded = plan_from(text, pipeline)
            str(loaded)
            if drain:
                with pipeline.loader(executor="inline", plan=loaded) as loader:
                    for _ in islice(iter(loader), 3):
                        pass

        outcome(run, tally, told)
    return tally


def cedar_text(plan: Any) -> str:
    """A plan as it is saved."""
    from cedar.plan.saved import text_of

    return text_of(plan)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="500 of each")
    parser.add_argument("--count", type=int, default=None, help="of each")
    parser.add_argument("--only", nargs="*", choices=["states", "plans"], default=["states", "plans"])
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    count = given.count or (500 if given.quick else 50_000)
    warnings.simplefilter("ignore")
    good = True
    for name in given.only:
        tally = (states if name == "states" else plans)(count, given.seed)
        raw = sum(many for many, _ in tally.odd.values())
        good &= not raw
        print(
            f"{name:8}{count:9,} changed{tally.refused:9,} refused{tally.harmless:9,} harmless{raw:7,} raw", flush=True
        )
        for told, (many, example) in sorted(tally.odd.items(), key=lambda item: -item[1][0]):
            print(f"  {many:6,} {told}\n         {example}")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
