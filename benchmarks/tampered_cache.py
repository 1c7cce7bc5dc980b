"""Cache entries that a stranger changed, checksums made right again: each must be refused, or do no harm.

    python -m benchmarks.tampered_cache            # 100,000
    python -m benchmarks.tampered_cache --quick    # 10,000

Harm is an exception, code that runs, an array that shows memory beyond the entry, another file that is touched, or the
end of the process. Cases run in their own processes, so that one that ends its process is counted.
"""

from __future__ import annotations

import argparse
import json
import logging
import random
import struct
import subprocess
import sys
import tempfile
import zlib
from collections import Counter
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from cedar.core.block import Block, Skipped
from cedar.core.columns import Column
from cedar.core.cursor import Keys
from cedar.core.groups import GroupColumn, grouped
from cedar.store.blocks import versions, write_body
from cedar.store.cache import RECORD, Key, Store
from cedar.store.entry import MAGIC, TAIL, tail
from cedar.store.folder import Folder
from cedar.store.place import INSIDE
from cedar.tasks.fingerprints import OperatorDigests, Record, why_missing

_ODD: tuple[Any, ...] = (
    -1, 0, 1, 63, 64, 2**31 - 1, 2**31, 2**40, 2**63, -(2**70), 1.5, float("nan"), True, None, "", "x" * 5000, [], {},
    [-1, 10**6], "O", "V8", "|S0", "<f8", "<U4", "datetime64[s]", [[[]]], {"row": 1}, "\x1b[2J", "row", "../../x",
)  # fmt: skip
_WORDS = (0, 1, -1, 7, 64, 2**15, 2**31 - 1, -(2**31), 2**40, 2**62, -(2**63))
_AUDITED = frozenset(
    {"pickle.find_class", "os.system", "subprocess.Popen", "os.exec", "socket.connect", "ctypes.dlopen"}
)
KEY = Key("a" * 16, "b" * 16, (3,), None)


@dataclass
class Found:
    """What became of the cases."""

    counts: Counter[str] = field(default_factory=Counter)
    harm: list[str] = field(default_factory=list)


def blocks(rng: random.Random) -> list[Block]:
    """Blocks with columns of several kinds, groups, skipped rows."""
    found = []
    for _ in range(rng.randint(1, 2)):
        n = rng.randint(1, 6)
        columns: dict[str, Column] = {
            "i": pa.array(range(n)), "s": pa.array(([None, "a", "word"] * n)[:n], pa.large_string()),
            "l": pa.array([list(range(k)) for k in range(n)], pa.large_list(pa.int32())), "n": pa.nulls(n),
            "t": np.arange(n * 4, dtype=np.float32).reshape(n, 2, 2), "e": np.zeros((n, 0)),
            "b": pa.array([k % 2 == 0 for k in range(n)]),
            "d": pa.array([{"a": [k], "b": "x"} for k in range(n)],
                          pa.struct([("a", pa.large_list(pa.int64())), ("b", pa.large_string())])),
        }  # fmt: skip
        lists = pa.array([[k % 2] for k in range(n)], pa.large_list(pa.int64()))
        columns |= grouped({"g": lists, "h": lists})
        dead = {n: Skipped(3, "map(f)", "why")} if rng.random() < 0.5 else {}
        found.append(Block(columns, Keys(np.arange(n + len(dead)), file=np.arange(n + len(dead))), dead))
    return found


def whole(given: list[Block]) -> tuple[bytearray, dict[str, Any]]:
    """The body of an entry, and what it says of itself."""
    sink = pa.BufferOutputStream()
    described = write_body(given, sink, (3,))
    return bytearray(sink.getvalue().to_pybytes()), json.loads(json.dumps(described))


def tampered(rng: random.Random) -> bytes:
    """An entry with a few changes."""
    body, described = whole(blocks(rng))
    way = rng.randrange(5)
    if way == 0:  # without another checksum
        raw = bytearray(_sealed(body, described))
        for _ in range(rng.randint(1, 4)):
            raw[rng.randrange(len(raw))] ^= 1 << rng.randrange(8)
        return bytes(raw[: rng.randint(0, len(raw))] if rng.random() < 0.3 else raw)
    if way == 1:
        return rng.randbytes(rng.randint(0, 400)) + TAIL.pack(rng.randint(0, 500), 0, MAGIC)
    for _ in range(rng.randint(1, 3)):
        if way in (2, 4):
            _change_said(described, rng)
        if way in (3, 4):
            _change_body(body, rng)
    try:
        return _sealed(body, described)
    except (TypeError, ValueError, RecursionError):
        return bytes(body)


def _sealed(body: bytearray, described: dict[str, Any]) -> bytes:
    return bytes(body) + tail(KEY.name, described, versions(), len(body), zlib.crc32(body))


def _change_said(described: Any, rng: random.Random) -> None:
    """Put something odd in the place of some value, or take it away."""
    node, places = described, []
    while isinstance(node, (dict, list)) and node:
        key = rng.choice(list(node)) if isinstance(node, dict) else rng.randrange(len(node))
        places.append((node, key))
        node = node[key]
    if not places:
        return
    parent, key = rng.choice(places[-3:])
    if rng.random() < 0.15:
        del parent[key]
    elif rng.random() < 0.02:
        deep: Any = []
        for _ in range(900):
            deep = [deep]
        parent[key] = deep
    elif isinstance(parent[key], int) and rng.random() < 0.5:
        parent[key] += rng.choice((-64, -8, -1, 1, 8, 64))
    else:
        parent[key] = deepcopy(rng.choice(_ODD))  # which may be changed next


def _change_body(body: bytearray, rng: random.Random) -> None:
    if not body:
        return
    way, place = rng.randrange(4), rng.randrange(len(body))
    if way == 0:
        body[place] ^= 1 << rng.randrange(8)
    elif way == 1 and len(body) >= 8:
        place = min(place - place % 4, len(body) - 8)
        body[place : place + 8] = struct.pack("<q", rng.choice(_WORDS))
    elif way == 2 and len(body) >= 4:
        place = min(place - place % 4, len(body) - 4)
        body[place : place + 4] = struct.pack("<i", max(-(2**31), min(2**31 - 1, rng.choice(_WORDS))))
    else:
        other = rng.randrange(len(body))
        size = rng.randint(1, 64)
        body[place : place + size] = body[other : other + size][: len(body) - place].ljust(
            len(body[place : place + size]), b"\0"
        )


def within(block: Block, low: int, high: int) -> bool:
    """Whether all that a block shows is within an entry, or was rebuilt, and can be looked at."""
    for column in block.columns.values():
        values = column.values if isinstance(column, GroupColumn) else column
        if isinstance(values, pa.Array):
            values.validate(full=True)
            for buffer in values.buffers():
                if (
                    buffer is not None
                    and buffer.size
                    and not buffer.is_mutable  # Arrow's own memory, rebuilt and filled
                    and not low <= buffer.address <= buffer.address + buffer.size <= high
                ):
                    return False
            values.to_pylist()
        else:
            values.sum() if values.dtype.kind in "biufc" else values.tolist()
        if isinstance(column, GroupColumn):
            column.plain().to_pylist()
    return len(block.keys.hash(1)) == block.slots


def try_cases(seed: int, count: int, audited: bool = False) -> Found:
    """Runs cases, through a directory and through a URL."""
    found, rng = Found(), random.Random(seed)
    events: list[str] = []
    armed = [False]
    if audited:
        sys.addaudithook(lambda event, _args: events.append(event) if armed[0] and event in _AUDITED else None)
    operators = (OperatorDigests("map(f)", "0", {"code": "1"}),)
    record = Record(operators, None, "", {"python": "3"}, False).as_json(KEY.group, "d", "raise")
    with tempfile.TemporaryDirectory(prefix="cedar-tampered-") as root:
        places = (f"{root}/kept", f"memory://tampered-{seed}")
        for where in places:
            Store().put(KEY, where, blocks(rng), record)
        canary = Path(root, "kept", INSIDE, "precious.arrow")
        canary.write_text("precious")
        for case in range(count):
            where, store = places[case % 2], Store()
            place = store.place(where)
            if case % 10 == 9:
                _put(place, KEY.group + RECORD, _record(record, rng))
            else:
                _put(place, KEY.name, tampered(rng))
            armed[0] = True
            try:
                if case % 10 == 9:
                    found.counts["record"] += bool(why_missing(store.records(where), record))
                else:
                    found.counts[_outcome(store, where)] += 1
            except BaseException as error:  # noqa: BLE001 - that is what is looked for
                found.harm.append(f"seed {seed}, case {case}: {type(error).__name__}: {error}")
            armed[0] = False
            if events:
                found.harm.append(f"seed {seed}, case {case}: {events}")
                events.clear()
        if canary.read_text() != "precious":
            found.harm.append(f"seed {seed}: another file was touched")
    return found


def _record(record: dict[str, Any], rng: random.Random) -> bytes:
    changed = json.loads(json.dumps(record))
    for _ in range(3):
        _change_said(changed, rng)
    try:
        text = tail(KEY.group + RECORD, changed, {}, 0, 0)
    except RecursionError:  # nested more than once
        deep = b"[" * 100_000
        text = deep + TAIL.pack(len(deep), zlib.crc32(deep), MAGIC)
    torn = (b"[" * 100_000, text[: len(text) // 2], b"\xff\xfe", b"{}", b"1")
    return text if rng.random() < 0.8 else rng.choice(torn)


def _put(place: Any, name: str, raw: bytes) -> None:
    if isinstance(place, Folder):
        Path(place.path(name)).write_bytes(raw)
    else:
        place._remote.fs.pipe_file(place._file(name), raw)


def _outcome(store: Store, where: str) -> str:
    loaded: list[Any] = []
    place = store.place(where)
    real = place._load

    def load(name: str) -> Any:
        loaded.append(real(name))
        return loaded[-1]

    place._load = load  # type: ignore[method-assign]  # to see what the store reads
    got = store.get(KEY, where)
    if got is None:
        if not store.notes:
            raise AssertionError("refused without a word")
        return "refused by name"
    raw = memoryview(loaded[-1][0])
    low = np.frombuffer(raw, np.uint8).ctypes.data
    if not all(within(block, low, low + raw.nbytes) for block in got):
        raise AssertionError("memory beyond the entry is shown")
    return "harmless"


def main() -> None:
    """The command."""
    logging.getLogger("cedar").setLevel(logging.ERROR)
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="10,000 cases instead of 100,000")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--count", type=int, help="so many cases, in this process")
    given = parser.parse_args()
    if given.count:
        found = try_cases(given.seed, given.count, audited=True)
        print(json.dumps([found.counts, found.harm]))
        return
    total, size = Found(), 2000
    for chunk in range((10_000 if given.quick else 100_000) // size):
        seed = str(given.seed * 1000 + chunk)
        ran = subprocess.run(
            [sys.executable, "-m", "benchmarks.tampered_cache", "--seed", seed, "--count", str(size)],
            stdout=subprocess.PIPE, text=True, timeout=1200, check=False,
        )  # fmt: skip
        if ran.returncode:
            total.harm.append(f"seed {seed}: the process ended with {ran.returncode}")
            continue
        counts, harm = json.loads(ran.stdout)
        total.counts.update(counts)
        total.harm += harm
    print(*[f"{count:>8,} {what}" for what, count in total.counts.most_common()], sep="\n")
    print(f"{len(total.harm):>8,} did harm", *total.harm[:20], sep="\n  ")
    sys.exit(bool(total.harm))


if __name__ == "__main__":
    main()
