"""Text packing by the user's own function, called for each line by cedar and its peers."""

from __future__ import annotations

import unicodedata
from dataclasses import replace
from typing import Any

import numpy as np

from benchmarks.peers.workload import Array
from benchmarks.peers.workloads import text
from benchmarks.peers.workloads.text import LENGTH, Text, cleaned


class Lines(Text):
    """The same rows, but a line at a time."""

    def tokens(self, line: str) -> list[int]:
        found: list[int] = self.tokenizer.encode(line, add_special_tokens=False).ids
        return found

    def encoded(self, content: bytes) -> dict[str, Array]:
        ids = [np.array(self.tokens(line), np.int32) for line in cleaned(content)]
        return {"ids": np.concatenate(ids), "lengths": np.array([len(x) for x in ids], np.int64)}


def pipeline(work: Lines, _setting: str) -> Any:
    import cedar
    from cedar import col

    def tokens(line: str) -> Array:
        return np.array(work.tokens(line), np.int32)

    return (
        cedar.read_text(f"{work.folder}/lines.txt")
        .map(lambda line: unicodedata.normalize("NFKC", line).strip(), "text")
        .filter(col("text") != "")
        .map(tokens, "text", into="ids")
        .select("ids")
        .pack(LENGTH, "ids")
        .batch(work.batch, last="keep")
    )


WORKLOAD = replace(
    text.WORKLOAD,
    name="text_function",
    title="text packing, a user's function",
    work=Lines,
    rows=(9000, 400_000, 1_600_000),  # epochs of seconds: plans are chosen within the first
    pipeline=pipeline,
    limits={},
    holds_gil=True,
)
