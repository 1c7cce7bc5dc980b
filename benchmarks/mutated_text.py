"""Mutated texts: what tokenize, normalize and read_text make of bytes that something damaged.

    python -m benchmarks.mutated_text [inputs per transform]

Every input has a defined result: the row's ids or text, equal to what plain Python makes of the same bytes, or an error
that names the row, or the file. Nothing else, and nothing that takes seconds.
"""

from __future__ import annotations

import random
import sys
import tempfile
import time
import unicodedata
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa

import cedar
from cedar.operators import text
from cedar.operators.transform import BadValues, Transform

SEEDS = [
    b"The quick brown fox, jumping over 12 lazy dogs, didn't care: it's what they'll do.",
    "Gr\u00fc\u00dfe aus K\u00f6ln, \u041f\u0440\u0438\u0432\u0435\u0442, \u4f60\u597d \U0001f600 cafe\u0301".encode(),
    b"\tif (a[i] != 'x') { return \"<|end|>\"; }  // 3.14159\r\n",
    b"",
]  # fmt: skip
_NASTY = [
    b"\x00", b"\xff", b"\xc0\x80", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\xef\xbb\xbf", b"\xe2\x80", b"\xf0\x9f",
    b"\r", b"\x85", "\u2028\u200d\ufeff".encode(), "\ufdfa".encode(), "e\u0301\u0323".encode(), b"<|end|>", b"<|end",
    b"[CLS]", b" " * 300, b"a" * 300, b"'" * 50, "\u0301".encode() * 50,
]  # fmt: skip
_BATCH = 500
_SLOW = 2.0  # seconds that no batch of inputs may take


def mutated(seed: int, n: int) -> Iterator[bytes]:
    """``n`` damaged texts, the same ones for the same seed."""
    rng = random.Random(seed)
    for _ in range(n):
        data = bytearray(rng.choice(SEEDS))
        for _ in range(rng.randint(1, 4)):
            at, kind = rng.randint(0, len(data)), rng.randrange(5)
            if kind == 0 and data:
                data[at % len(data)] ^= 1 << rng.randrange(8)
            elif kind == 1:
                data[at:at] = rng.choice(_NASTY)
            elif kind == 2:
                del data[at : at + rng.randint(1, 9)]
            elif kind == 3:
                data[at:at] = rng.randbytes(rng.randint(1, 6))
            else:
                other = rng.choice(SEEDS)
                data[at:] = other[rng.randint(0, len(other)) :]
        yield bytes(data)


def check(make: Callable[..., Transform], plain: Callable[[str], Any], seed: int, n: int) -> dict[str, int]:
    """Runs a transform over mutated bytes, as they are and with what is not UTF-8 replaced; counts the outcomes.

    Args:
        make: the transform, for ``errors="strict"`` or "replace".
        plain: what it is to make of a text.

    Raises:
        AssertionError: any other outcome.
    """
    counts = {"result": 0, "named": 0}
    inputs = list(mutated(seed, n))
    for low in range(0, n, _BATCH):
        raw = inputs[low : low + _BATCH]
        begun = time.perf_counter()
        column = pa.array(raw, pa.large_binary())
        raw_ids: Any = make(errors="replace").columns(column)
        made = raw_ids.to_pylist()
        expected = [plain(each.decode("utf-8", "replace")) for each in raw]
        wrong = [each for each, one, other in zip(raw, made, expected, strict=True) if one != other]
        assert not wrong, f"other than expected: {wrong[:3]}"
        bad = {row for row, each in enumerate(raw) if not _is_text(each)}
        try:
            make(errors="strict").columns(column)
            found: set[int] = set()
        except BadValues as refused:
            found = set(refused.rows)
        assert found == bad, f"rows that are not UTF-8: {bad ^ found}"
        assert time.perf_counter() - begun < _SLOW * _BATCH, "slow"
        counts["result"] += len(raw) - len(bad)
        counts["named"] += len(bad)
    return counts


def check_files(seed: int, n: int) -> dict[str, int]:
    """read_text on damaged files: the lines, or an error that names the file."""
    counts = {"result": 0, "named": 0}
    with tempfile.TemporaryDirectory() as folder:
        for number, data in enumerate(mutated(seed, n)):
            path = Path(folder) / f"{number}.txt"
            path.write_bytes(data + b"\nlast line\n")
            pipeline = cedar.read_text(str(path)).map(text.normalize("NFC"), "text").map(text.tokenize(), "text")
            refused = None
            try:
                rows = [bytes(row["text"]).decode() for row in pipeline.loader(plan="off", executor="inline")]
            except cedar.CedarError as error:
                refused = str(error)
            if refused is not None:
                assert not _is_text(data), f"{data!r}: {refused}"
                assert path.name in refused, refused
                counts["named"] += 1
                continue
            lines = [*data.decode().split("\n"), "last line"]
            assert rows == [unicodedata.normalize("NFC", line.removesuffix("\r")).strip() for line in lines], repr(data)
            counts["result"] += 1
    return counts


def _is_text(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def _normalized(form: Any, value: str) -> str:
    return " ".join(unicodedata.normalize(form, value).lower().split())


def _ids(tokenizer: Any, value: str) -> list[int]:
    return list(tokenizer.encode(value).ids)


def transforms() -> dict[str, tuple[Callable[..., Transform], Callable[[str], Any]]]:
    """What is run, each with its plain model; tokenizers are trained on the seeds."""
    found: dict[str, tuple[Callable[..., Transform], Callable[[str], Any]]] = {}
    for form in ("NFC", "NFKD"):
        found[f"normalize {form}"] = (
            partial(text.normalize, form, lower=True, collapse=True),
            partial(_normalized, form),
        )
    for name, made in _tokenizers().items():
        found[f"tokenize {name}"] = (partial(text.tokenize, made), partial(_ids, made))
    return found


def _tokenizers() -> dict[str, Any]:
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers

    corpus = [seed.decode() for seed in SEEDS] * 3
    byte_level = Tokenizer(models.BPE())
    byte_level.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    byte_level.train_from_iterator(
        corpus,
        trainers.BpeTrainer(vocab_size=300, special_tokens=["<|end|>"], initial_alphabet=alphabet, show_progress=False),
    )
    word_piece = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    word_piece.normalizer = normalizers.BertNormalizer()
    word_piece.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    word_piece.train_from_iterator(
        corpus, trainers.WordPieceTrainer(vocab_size=200, special_tokens=["[UNK]", "[CLS]"], show_progress=False)
    )
    unigram = Tokenizer(models.Unigram())
    unigram.pre_tokenizer = pre_tokenizers.Metaspace()
    unigram.train_from_iterator(
        corpus,
        trainers.UnigramTrainer(vocab_size=200, special_tokens=["<unk>"], unk_token="<unk>", show_progress=False),
    )
    return {"byte-level BPE": byte_level, "WordPiece": word_piece, "Unigram": unigram}


def main(n: int) -> None:
    """Prints the outcomes per transform."""
    for name, (make, plain) in transforms().items():
        print(f"{name:24s} {check(make, plain, seed=1, n=n)}")
    print(f"{'read_text':24s} {check_files(seed=2, n=n)}")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 10_000)
