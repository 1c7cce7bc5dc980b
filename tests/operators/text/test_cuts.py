"""Cuts: the words of the pieces are the words of the whole, whatever the vocabulary makes of them."""

import itertools
import random
import unicodedata

import numpy as np
import pytest

from cedar.operators.text import cuts
from cedar.operators.text.cuts import Cutter
from cedar.operators.text.recognize import PATTERNS, traits_of_tokenizer
from tests.operators.text.toy_tokenizers import CLASSES, CORPUS, NAMES, SHAKESPEARE, tokenizer, tokenizers


def words_of(made, text):
    """What a tokenizer's model would see."""
    text = made.normalizer.normalize_str(text) if made.normalizer is not None else text
    return [word for word, _ in made.pre_tokenizer.pre_tokenize_str(text)]


def pieces(cutter, text):
    data = np.frombuffer(text.encode(), np.uint8)
    places = np.flatnonzero(cutter.cuts(data, 0, len(data))).tolist() if len(data) else []
    return [bytes(data[i:j]).decode() for i, j in itertools.pairwise([0, *places, len(data)])]


def texts(seed):
    rng = random.Random(seed)
    yield from CORPUS
    yield from ("".join(each) for n in range(3) for each in itertools.product(CLASSES, repeat=n))
    yield from ("".join(rng.choices(CLASSES, k=rng.randint(3, 9))) for _ in range(300))
    yield from ("".join(rng.choices(" \t\n'_/asSv1.", k=rng.randint(3, 9))) for _ in range(300))
    if SHAKESPEARE.exists():
        yield from SHAKESPEARE.read_text().split("\n\n")[:100]


def seen(made, cutter, seed):
    """Texts in which cuts are seen, and how many cuts there were."""
    counted, found, known = 0, [], {}
    for text in texts(seed):
        parts = pieces(cutter, text)
        counted += len(parts) - 1
        for part in parts:
            if part not in known:
                known[part] = words_of(made, part)
        if [word for part in parts for word in known[part]] != words_of(made, text):
            found.append(text)
    return found, counted


@pytest.mark.heavy
@pytest.mark.parametrize("name", NAMES)
def test_tokenizers(name):
    text = tokenizer(name).to_str()
    known = traits_of_tokenizer(text)
    bare = tokenizers.Tokenizer.from_str(text.replace('"add_prefix_space":true', '"add_prefix_space":false'))
    found, counted = seen(bare, known.cutter, name)
    assert found == []
    assert counted > 300


@pytest.mark.heavy
@pytest.mark.parametrize("behavior", ["isolated", "removed"])
@pytest.mark.parametrize("pattern", PATTERNS)
def test_patterns(pattern, behavior):
    made = tokenizers.Tokenizer(tokenizers.models.BPE())
    split = tokenizers.pre_tokenizers.Split(tokenizers.Regex(pattern), behavior, invert=behavior == "removed")
    made.pre_tokenizer = split
    known = traits_of_tokenizer(made.to_str())
    assert known.cutter == Cutter(PATTERNS[pattern])
    assert seen(made, known.cutter, pattern)[0] == []


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("name", "pair"),
    [
        ("gpt2", ("quote", "letter")),
        ("gpt2", ("mark", "quote")),
        ("cl100k", ("mark", "letter")),
        ("cl100k", ("mark", "line")),
        ("o200k", ("letter", "quote")),
        ("gpt2", ("digit", "digit")),
        ("bert", ("letter", "letter")),
        ("whitespace", ("under", "letter")),
        ("gpt2", ("space", "space")),
    ],
)
def test_a_table_that_goes_too_far_is_found(name, pair, monkeypatch):
    known = traits_of_tokenizer(tokenizer(name).to_str())
    wrong = f"wrong, {name}, {pair}"  # tables are kept by their names
    monkeypatch.setitem(cuts.FAMILIES, wrong, cuts.FAMILIES[known.cutter.family] | {pair})
    assert seen(tokenizer(name), Cutter(wrong), name)[0] != []


def test_a_space_after_white_space_beyond_ascii_is_no_cut():
    wide = [chr(n) for n in [*range(0x80, 0xD800), *range(0xE000, 0x11000), *range(0x1F600, 0x1F650)]]
    parts = [f"a{c} b" for c in wide]
    data = np.frombuffer("".join(parts).encode(), np.uint8)
    cut = Cutter("gpt2").cuts(data, 0, len(data))[np.cumsum([len(part.encode()) for part in parts]) - 2]
    assert not any(c.isspace() for c, seen in zip(wide, cut.tolist(), strict=True) if seen)
    assert cut.sum() > 0.99 * len(wide)
    assert pieces(Cutter("gpt2"), "caf\xe9 au lait") == ["caf\xe9", " au", " lait"]


def test_no_other_character_is_changed_into_white_space():
    wide = [chr(n) for n in [*range(0x80, 0xD800), *range(0xF900, 0x10000), *range(0x1D400, 0x1F800)]]
    for form in ("NFKC", "NFKD"):
        changed = unicodedata.normalize(form, "\0".join(wide)).lower().split("\0")
        assert {c for c, to in zip(wide, changed, strict=True) if to[-1].isspace()} <= cuts._WIDE
