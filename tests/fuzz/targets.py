"""What is fuzzed: for every format that a stranger may write, a function that reads its bytes as cedar does.

A target returns where the bytes can be read and where they are refused by name; whatever else it raises is a finding.
"""

from __future__ import annotations

import atexit
import json
import os
import shutil
import tempfile
import zlib
from collections.abc import Callable, Mapping
from functools import lru_cache
from itertools import islice
from typing import Any

import pyarrow as pa

import cedar
from cedar.core.errors import CedarError

Target = Callable[[bytes], None]
CORPUS = os.path.join(os.path.dirname(__file__), "corpus")
TENSORS = "model-0.safetensors"  # the file of tensors that indexes in the corpus name
_MOST = 1 << 24  # pixels or samples


@lru_cache(maxsize=1)
def _folder() -> str:
    made = tempfile.mkdtemp(prefix="cedar-fuzz-", dir="/dev/shm" if os.path.isdir("/dev/shm") else None)
    atexit.register(shutil.rmtree, made, ignore_errors=True)
    return made


def _file(data: bytes, suffix: str) -> str:
    path = os.path.join(_folder(), f"{os.getpid()}{suffix}")
    with open(path, "wb") as file:
        file.write(data)
    return path


def _reads(reader: Callable[[str], Any], suffix: str) -> Target:
    """Schema, splits and all rows of a file."""

    def target(data: bytes) -> None:
        path = _file(data, suffix)
        try:
            source = reader(path)
            for ask in (source.schema, source.digest, lambda: source.row_bytes):
                ask()
            for split in source.splits():
                for chunk in source.read(split):
                    for column in chunk.columns.values():
                        if isinstance(column, pa.Array):
                            column.validate(full=True)
        except CedarError as error:
            if path not in str(error):
                raise AssertionError(f"the file is not named: {error}") from error

    return target


def _parquet(path: str) -> Any:
    from cedar.datasets.parquet import read_parquet

    source = read_parquet(path)
    for split in source.splits():
        for leaf in source._leaves[split.file]:
            source._bounds(split, leaf)
    return source


def _footer(data: bytes) -> None:
    from cedar.datasets.parquet_footer import BadFooter, check_metadata

    try:
        check_metadata(data)
    except BadFooter:
        return


def _image(data: bytes) -> None:
    from cedar.operators.image.decoding import decode_image
    from cedar.operators.image.headers import BadImage, read_header

    try:
        decode_image(data, read_header(data, _MOST, exif=True), "RGB")
    except BadImage:
        return


def _audio(data: bytes) -> None:
    from cedar.operators import audio

    try:
        audio.decode(most=_MOST)(data)
    except ValueError as error:
        if type(error) is not ValueError:
            raise


@lru_cache(maxsize=1)
def _pipeline() -> cedar.Pipeline:
    items = cedar.from_items([{"x": i} for i in range(40)])
    return cedar.concat(items.filter(_odd, "x"), items.repeat(2)).shuffle(window=16).batch(4)


def _odd(x: int) -> bool:
    return x % 2 == 1


def _state(data: bytes) -> None:
    """A state with its own checksum, as something would give it who wants it read."""
    from cedar.engine.delivery.state import seal

    found: Any = data
    try:
        found = json.loads(data)
        if isinstance(found, dict):
            found = seal({k: v for k, v in found.items() if k != "check"})
    except (ValueError, RecursionError):
        pass
    try:
        with _pipeline().loader(executor="inline", plan="off") as loader:
            loader.load_state_dict(found)
            list(islice(iter(loader), 5))
    except CedarError:
        return


def _plan(data: bytes) -> None:
    from cedar.plan.saved import plan_from

    try:
        str(plan_from(data.decode("utf-8", "replace"), _pipeline()))
    except CedarError:
        return


def split(data: bytes) -> tuple[bytes, bytes]:
    """JSON and what it tells of: the length of the first in four bytes, then both."""
    size = int.from_bytes(data[:4], "little")
    return data[4 : 4 + size], data[4 + size :]


def _cache_entry(data: bytes) -> None:
    """An entry with right checksums, as a stranger would write it who wants it read."""
    from cedar.store.blocks import read_blocks
    from cedar.store.entry import MAGIC, TAIL, Damaged, opened, tail

    text, body = split(data)
    try:
        told = json.loads(text)
        if isinstance(told, dict):
            text = tail("name", told, {}, len(body), zlib.crc32(body))[: -TAIL.size]
    except (ValueError, RecursionError):
        pass
    entry = body + text + TAIL.pack(len(text), zlib.crc32(text), MAGIC)
    try:
        read_blocks(opened(bytearray(entry), "name", {}), [0])
    except Damaged:
        return


def _checkpoint(data: bytes) -> None:
    """What an index tells of tensors, and the file that it names."""
    from cedar.trainers.common.tensors import Reader, entries_of

    text, body = split(data)
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return
    with open(os.path.join(_folder(), TENSORS), "wb") as file:
        file.write(body)
    try:
        with Reader(_folder(), entries_of(found, "the index")) as reader:
            reader.verify_all()
    except CedarError:
        return


def _sources() -> Mapping[str, Target]:
    from cedar.datasets.arrow import read_arrow
    from cedar.datasets.csv import read_csv
    from cedar.datasets.jsonl import read_jsonl
    from cedar.datasets.tar import read_tar
    from cedar.datasets.text import read_text

    return {
        "parquet": _reads(_parquet, ".parquet"), "arrow": _reads(read_arrow, ".arrow"),
        "csv": _reads(read_csv, ".csv"), "jsonl": _reads(read_jsonl, ".jsonl"), "text": _reads(read_text, ".txt"),
        "tar": _reads(read_tar, ".tar"), "gz": _reads(read_text, ".txt.gz"), "zst": _reads(read_jsonl, ".jsonl.zst"),
    }  # fmt: skip


TARGETS: Mapping[str, Target] = {
    **_sources(), "footer": _footer, "image": _image, "audio": _audio, "state": _state, "plan": _plan,
    "cache": _cache_entry, "checkpoint": _checkpoint,
}  # fmt: skip


def corpus(name: str) -> list[bytes]:
    """The files of a target in the tree, in order of their names."""
    folder = os.path.join(CORPUS, name)
    found = []
    for file in sorted(os.listdir(folder)):
        with open(os.path.join(folder, file), "rb") as opened:
            found.append(opened.read())
    return found
