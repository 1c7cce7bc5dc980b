"""Small tokenizers of every kind, trained in a moment."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import strategies as st

tokenizers = pytest.importorskip("tokenizers")
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers  # noqa: E402

from cedar.operators.text.recognize import PATTERNS  # noqa: E402

SHAKESPEARE = Path(__file__).resolve().parents[4] / "shared" / "data" / "tinyshakespeare.txt"
CORPUS = [
    "The quick brown fox, jumping over 12 lazy dogs, didn't care: it's what they'll do, we're sure!",
    "It'S 1984; I'VE (un)done_it -- see http://a.b/c?d=e#f, or 3.14159 & 42/7 <br/> [x] {y}",
    "Grüße aus Köln, Ærøskøbing und Łódź! Привет, мир. 你好\uff0c世界。 こんにちは 안녕 مرحبا नमस्ते",
    "tabs\tand\nlines\r\nand  two   spaces, naïve café — “quotes” … 100€ ½ x² ﬁ Ⅷ",
] * 3  # fmt: skip
# A few characters of every class, and of those that normalizers change, drop or make to white space.
CLASSES = list(" \t\n\r\x0b'_/asSv1.<\xe9\xa0\u3000\x00\x1c\u0301\x85\uff01\u4e8c\xb2\u200d\ufeff\u2028\u2581\xb4")
PIECES = st.sampled_from(
    [*CLASSES, "'s", "'LL", "  ", "<|end|>", "[CLS]", "[UNK]", "end|>", "The", "12", "\u2581", "</s>"]
)
TEXTS = st.lists(PIECES, max_size=12).map("".join) | st.text(max_size=12)
_NAMES = {"gpt2": 0, "cl100k": 3, "qwen2": 4, "o200k": 7}


def _bpe(pre: Any, *, normalizer: Any = None, special: tuple[str, ...] = ("<|end|>",), size: int = 600) -> Any:
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre
    if normalizer is not None:
        made.normalizer = normalizer
    made.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=size, special_tokens=list(special), initial_alphabet=alphabet, show_progress=False
    )
    made.train_from_iterator(CORPUS, trainer)
    return made


def _split(name: str) -> Any:
    pattern = list(PATTERNS)[_NAMES[name]]
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    return pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(pattern), "isolated"), byte_level])


def _word_piece(**options: Any) -> Any:
    made = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    made.normalizer = normalizers.BertNormalizer(**options)
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    names = ["[UNK]", "[CLS]", "[SEP]"]
    made.train_from_iterator(
        CORPUS, trainers.WordPieceTrainer(vocab_size=400, special_tokens=names, show_progress=False)
    )
    made.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 1), ("[SEP]", 2)]
    )
    return made


def _unigram() -> Any:
    made = Tokenizer(models.Unigram())
    made.pre_tokenizer = pre_tokenizers.Metaspace()
    trainer = trainers.UnigramTrainer(
        vocab_size=300, special_tokens=["<unk>", "</s>"], unk_token="<unk>", show_progress=False
    )
    made.train_from_iterator(CORPUS, trainer)
    return made


def _words(pre: Any) -> Any:
    made = Tokenizer(models.WordLevel(unk_token="?"))
    made.pre_tokenizer = pre
    made.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Lowercase()])
    made.train_from_iterator(CORPUS, trainers.WordLevelTrainer(special_tokens=["?"], show_progress=False))
    return made


_MAKERS: dict[str, Any] = {
    "gpt2": lambda: _bpe(pre_tokenizers.ByteLevel(add_prefix_space=False)),
    "gpt2 prefix": lambda: _bpe(pre_tokenizers.ByteLevel(add_prefix_space=True)),
    "gpt2 nfc": lambda: _added(_bpe(pre_tokenizers.ByteLevel(add_prefix_space=False), normalizer=normalizers.NFC())),
    "gpt2 nfkd": lambda: _added(_bpe(pre_tokenizers.ByteLevel(add_prefix_space=False), normalizer=normalizers.NFKD())),
    "gpt2 digits": lambda: _bpe(
        pre_tokenizers.Sequence(
            [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
        )
    ),
    "cl100k": lambda: _bpe(_split("cl100k")),
    "qwen2": lambda: _bpe(_split("qwen2")),
    "o200k": lambda: _bpe(_split("o200k")),
    "bert": lambda: _word_piece(),
    "bert cased": lambda: _word_piece(lowercase=False, strip_accents=False, clean_text=False),
    "unigram": _unigram,
    "whitespace": lambda: _words(pre_tokenizers.Whitespace()),
    "whitespace split": lambda: _words(pre_tokenizers.WhitespaceSplit()),
}
NAMES = tuple(_MAKERS)


def _added(made: Any) -> Any:
    """Its special tokens are looked for in texts as they are, as most of those with a normalizer do."""
    made.add_special_tokens([tokenizers.AddedToken("<|end|>", normalized=False, special=True)])
    return made


@cache
def tokenizer(name: str) -> Any:
    return _MAKERS[name]()


@cache
def gpt2_ranks() -> dict[bytes, int]:
    """The ranks of the small BPE as tiktoken counts them."""
    units = {c: b for b, c in _units().items()}
    vocabulary = tokenizer("gpt2").get_vocab()
    return {bytes(units[c] for c in token): at for token, at in vocabulary.items() if token != "<|end|>"}


def _units() -> dict[int, str]:
    """GPT-2's characters for bytes."""
    own = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [b for b in range(256) if b not in own]
    return {b: chr(b) for b in own} | {b: chr(256 + i) for i, b in enumerate(others)}


def column(texts: list[Any], kind: Any = None) -> pa.Array:
    """A column as blocks hold it: sliced, so that offsets do not begin at 0."""
    return pa.array(["before", *texts] if kind is None else [b"before", *texts], kind or pa.large_string()).slice(1)


def ids_of(made: Any, texts: list[str], special: bool = True) -> list[list[int]]:
    """What the library itself makes of each text."""
    return [made.encode(text, add_special_tokens=special).ids for text in texts]
