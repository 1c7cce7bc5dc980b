"""Text packing: lines, normalize, drop the empty ones, BPE tokens, rows of 512 with segment ids and positions."""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.peers.workload import SEED, Array, Batch, Chunks, Row, Workload

LENGTH, VOCABULARY, LINES = 512, 8192, 1000
WORDS = 100_000


class Text(Chunks):
    """A chunk is a thousand lines; a row of the output has no identity but its place."""

    batch = 32
    compared = ("ids", "segment_ids", "positions")

    @cached_property
    def starts(self) -> list[int]:
        """The byte at which each chunk begins, and the end of the file."""
        found: list[int] = json.loads((self.path / "starts.json").read_text())
        return found

    @cached_property
    def tokenizer(self) -> Any:
        from tokenizers import Tokenizer

        return Tokenizer.from_file(str(self.path / "tokenizer.json"))

    def __len__(self) -> int:
        return len(self.starts) - 1

    def content(self, i: int) -> bytes:
        """Chunk ``i`` as it is in the file."""
        with (self.path / "lines.txt").open("rb") as file:
            file.seek(self.starts[i])
            return file.read(self.starts[i + 1] - self.starts[i])

    def lines(self, i: int) -> list[str]:
        """Lines of chunk ``i``, normalized, without the empty ones."""
        return cleaned(self.content(i))

    def chunk(self, i: int) -> dict[str, Array]:
        return self.encoded(self.content(i))

    def encoded(self, content: bytes) -> dict[str, Array]:
        """The tokens of the lines of a chunk, end to end, and how many each line has."""
        encoded = self.tokenizer.encode_batch_fast(cleaned(content), add_special_tokens=False)
        ids = [encoding.ids for encoding in encoded]
        lengths = np.array([len(x) for x in ids], np.int64)
        return {"ids": np.fromiter((x for row in ids for x in row), np.int32, int(lengths.sum())), "lengths": lengths}

    def assemble(self, results: Iterable[dict[str, Array]]) -> Iterator[Batch]:
        """Tokens end to end, cut every 512; the last row is filled with zeros."""
        ids, segments, positions = (np.zeros(0, np.int32) for _ in range(3))
        document = 0
        size = LENGTH * self.batch
        for result in results:
            lengths = np.asarray(result["lengths"])
            ends = np.cumsum(lengths)
            ids = np.concatenate([ids, result["ids"]])
            numbers = np.repeat(np.arange(document, document + len(lengths), dtype=np.int32), lengths)
            segments = np.concatenate([segments, numbers])
            places = np.arange(ends[-1] if len(ends) else 0, dtype=np.int32) - np.repeat(ends - lengths, lengths)
            positions = np.concatenate([positions, places.astype(np.int32)])
            document += len(lengths)
            whole = len(ids) // size * size
            for start in range(0, whole, size):
                yield packed(*(x[start : start + size] for x in (ids, segments, positions)))
            ids, segments, positions = ids[whole:], segments[whole:], positions[whole:]
        if len(ids):
            yield packed(ids, segments, positions)

    def ids(self, batch: Batch, position: int) -> Array:
        return np.arange(position, position + len(batch["ids"]))

    @cached_property
    def all_rows(self) -> dict[str, Array]:
        """The whole output, line by line."""
        encoded = [
            self.tokenizer.encode(line, add_special_tokens=False).ids
            for i in range(len(self))
            for line in self.lines(i)
        ]
        made: dict[str, list[int]] = {"ids": [], "segment_ids": [], "positions": []}
        for number, ids in enumerate(encoded):
            made["ids"] += ids
            made["segment_ids"] += [number] * len(ids)
            made["positions"] += range(len(ids))
        return packed(*(np.array(made[name], np.int32) for name in ("ids", "segment_ids", "positions")))

    def expected(self) -> Array:
        return np.arange(len(self.all_rows["ids"]))

    def reference(self, row: int) -> Row:
        return {name: column[row] for name, column in self.all_rows.items()}


def cleaned(content: bytes) -> list[str]:
    """Lines, normalized, without the empty ones."""
    lines = (unicodedata.normalize("NFKC", line).strip() for line in content.decode().split("\n"))
    return [line for line in lines if line]


def packed(ids: Array, documents: Array, positions: Array) -> dict[str, Array]:
    """Arrays of whole rows; segments count from 1 in each row, 0 is filling."""
    rest = -len(ids) % LENGTH
    filled = [np.concatenate([x, np.zeros(rest, np.int32)]) if rest else x for x in (ids, documents, positions)]
    rows, segments, places = (x.reshape(-1, LENGTH) for x in filled)
    segments = segments - segments[:, :1] + 1
    if rest:
        segments[-1, LENGTH - rest :] = 0
    return {"ids": rows, "segment_ids": segments, "positions": places}


def prepare(folder: Path, rows: int, own: Path | None) -> None:
    """Lines, the user's own over and over or made ones, and a BPE tokenizer trained on some of them."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    if own is None:
        lines = made_lines(rows)
    else:
        files = sorted(own.rglob("*.txt"))
        read = [line for path in files for line in path.read_text(errors="replace").split("\n")]
        if not read:
            raise FileNotFoundError(f"there is no .txt file below {own}")
        lines = (read * (rows // len(read) + 1))[:rows]
    starts, content = [0], bytearray()
    for start in range(0, len(lines), LINES):
        content += ("\n".join(lines[start : start + LINES]) + "\n").encode()
        starts.append(len(content))
    (folder / "lines.txt").write_bytes(bytes(content))
    (folder / "starts.json").write_text(json.dumps(starts))
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=VOCABULARY, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(lines[:40_000], trainer)
    tokenizer.save(str(folder / "tokenizer.json"))


def made_lines(rows: int) -> list[str]:
    """Lines of words that are as frequent as words are (Zipf), with capitals and punctuation; a sixth are empty."""
    rng = np.random.default_rng(SEED)
    syllables = np.array(
        [
            "".join(pair)
            for pair in zip(rng.choice(list("bcdfghjklmnprstvw"), 160), rng.choice(list("aeiou"), 160), strict=True)
        ]
    )
    words = np.array(
        [
            "".join(rng.choice(syllables, n)) + e
            for n, e in zip(rng.integers(1, 5, WORDS), rng.choice(["", "n", "s", "r", "ed", "ing"], WORDS), strict=True)
        ]
    )
    counts = np.where(rng.random(rows) < 1 / 6, 0, rng.poisson(8, rows) + 1)
    chosen = words[np.minimum((rng.pareto(0.75, int(counts.sum())) * 8).astype(np.int64), WORDS - 1)]
    ends = rng.choice([".", ",", ";", ":", "!", "?"], rows)
    parts = np.split(chosen, np.cumsum(counts)[:-1])
    return [(" ".join(part).capitalize() + end) if len(part) else "" for part, end in zip(parts, ends, strict=True)]


def pipeline(work: Any, _setting: str) -> Any:
    import cedar
    from cedar import col
    from cedar.operators import text

    return (
        cedar.read_text(f"{work.folder}/lines.txt")
        .map(text.normalize("NFKC"), "text")
        .filter(col("text") != "")
        .map(text.tokenize(f"{work.folder}/tokenizer.json", special=False), "text", into="ids")
        .select("ids")
        .pack(LENGTH, "ids")
        .batch(work.batch, last="keep")
    )


def encode_alone(work: Text, chunks: Sequence[int]) -> int:
    """Rows of 512 tokens that the batch encoder makes, nothing else being done with them."""
    tokens = 0
    for i in chunks:
        encoded = work.tokenizer.encode_batch_fast(work.lines(i), add_special_tokens=False)
        tokens += sum(len(x) for x in encoded)
    return tokens // LENGTH


WORKLOAD = Workload(
    name="text",
    title="text packing",
    unit="rows of 512 tokens",
    rows=(9000, 200_000, 1_600_000),
    work=Text,
    prepare=prepare,
    pipeline=pipeline,
    limits={"encode": encode_alone},
)
