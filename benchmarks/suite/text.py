"""Text: tokenize, look words up, cut long texts, drop short ones, pad; the score that drops most rows comes last."""

from __future__ import annotations

import re
import zlib
from typing import Any

import numpy as np

import cedar
from benchmarks.suite.case import Step, composed, read, write
from cedar import col
from cedar.operators.algebra import length_changing, per_value

LENGTH = 32
WORDS = 20_000
_WORD = re.compile(r"[a-z]+|[0-9]+|[^\sa-z0-9]")


def data(directory: str, rows: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    words = np.array(["".join(rng.choice(list("abcdefghijklmnop"), rng.integers(2, 9))) for _ in range(WORDS)])
    lengths = rng.geometric(1 / 60, rows) + 2
    chosen = words[(rng.random(lengths.sum()) ** 3 * WORDS).astype(np.int64)]
    texts = [" ".join(part) for part in np.split(chosen, np.cumsum(lengths)[:-1])]
    write(directory, {"text": texts, "score": rng.random(rows).astype(np.float32)}, 4096)


def tokenize(text: str) -> list[str]:
    return _WORD.findall(text.lower())


@per_value
def look_up(tokens: Any) -> list[int]:
    """Numbers of words, the same in every process."""
    return [zlib.crc32(token.encode()) % WORDS for token in tokens]


@length_changing
def truncate(tokens: Any) -> Any:
    return tokens[:LENGTH]


STEPS: dict[str, Step] = {
    "tokenize": lambda p: p.map(tokenize, "text", into="tokens", dtype=list[str]),
    "look_up": lambda p: p.map(look_up, "tokens", dtype=list[int]),
    "truncate": lambda p: p.map(truncate, "tokens"),
    "long": lambda p: p.filter(col("tokens").list.len() >= 8),
    "good": lambda p: p.filter(col("score") > 0.4),
}


def start(directory: str) -> cedar.Pipeline:
    return read(directory)


def finish(p: cedar.Pipeline) -> cedar.Pipeline:
    return p.pad("tokens", to=LENGTH).select("tokens", "score").batch(64, last="keep")


def make(directory: str, rows: int) -> cedar.Pipeline:
    return composed(start(directory), STEPS, finish)
