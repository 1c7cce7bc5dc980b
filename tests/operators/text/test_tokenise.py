"""tokenise: the ids are those of the library, however they were come by."""

import json
import pickle
import random
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cedar.core.errors import PipelineError
from cedar.operators.text import byte_level, encoding, tokenise, words
from cedar.operators.transform import BadValues
from tests.operators.text.toy_tokenizers import (
    CLASSES,
    CORPUS,
    NAMES,
    SHAKESPEARE,
    column,
    gpt2_ranks,
    tokenizer,
    tokenizers,
)

PIECES = st.sampled_from(
    [*CLASSES, "'s", "'LL", "  ", "<|end|>", "[CLS]", "[UNK]", "end|>", "The", "12", "\u2581", "</s>"]
)
TEXTS = st.lists(PIECES, max_size=12).map("".join) | st.text(max_size=12)


def ids_of(made, texts, special=True):
    return [made.encode(text, add_special_tokens=special).ids for text in texts]


@pytest.fixture(params=[7, 1 << 18], ids=["cut short", "as it is"])
def stretch(request, monkeypatch):
    """How many bytes are worked on at a time."""
    monkeypatch.setattr(encoding, "_STRETCH", request.param)


@pytest.mark.parametrize("name", NAMES)
def test_every_tokenizer_gives_its_ids(name):
    made = tokenizer(name)
    transform = tokenise(made)
    assert transform.how.startswith("word by word")
    texts = [*CORPUS, *SHAKESPEARE.read_text().splitlines()[:400]] if SHAKESPEARE.exists() else CORPUS
    for _ in range(2):  # words that are new, and words that are known
        found = transform.columns(column(texts))
        found.validate(full=True)
        assert found.type == pa.large_list(pa.int32()) == transform.result(pa.large_string())
        assert found.to_pylist() == ids_of(made, texts)


@pytest.mark.usefixtures("stretch")
@pytest.mark.parametrize("name", NAMES)
def test_any_text(name):
    made = tokenizer(name)

    @given(st.lists(TEXTS | st.none(), max_size=6), st.booleans())
    def run(texts, special):
        found = tokenise(made, special=special).columns(column(texts)).to_pylist()
        assert found == [None if t is None else made.encode(t, add_special_tokens=special).ids for t in texts]

    run()


def test_special_tokens_inside_a_text_are_those_tokens():
    made = tokenizer("gpt2 prefix")
    texts = ["a b", "a<|end|>b c", "<|end|>", "<|end", " <|end|> x<|end|>", "<|end|", ""]
    assert tokenise(made).columns(column(texts)).to_pylist() == ids_of(made, texts)
    assert 0 in tokenise(made)("a<|end|>b")


def test_what_a_tokenizer_puts_around_a_text_can_be_left_out():
    made = tokenizer("bert")
    assert tokenise(made)("the fox") == made.encode("the fox").ids
    assert tokenise(made, special=False)("the fox") == made.encode("the fox").ids[1:-1]
    assert tokenise(made)("") == [1, 2]


def test_truncation_is_the_tokenizers_padding_is_left_out():
    made = tokenizers.Tokenizer.from_str(tokenizer("bert").to_str())
    made.enable_truncation(6)
    made.enable_padding(length=50)
    texts = ["the quick brown fox", "the"]
    transform = tokenise(made)
    assert transform.how == "text by text: it truncates"
    made.no_padding()
    assert transform.columns(column(texts)).to_pylist() == ids_of(made, texts)
    assert len(transform(texts[0])) == 6


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"pre_tokenizer": None}, "it splits no text before its model sees it"),
        ({"normalizer": {"type": "StripAccents"}, "added_tokens": []}, "its normalizer StripAccents may look beyond"),
        ({"normalizer": {"type": "NFC"}, "added_tokens": "normalized"}, "it looks for added tokens in the normalised"),
        (
            {"pre_tokenizer": {"type": "Split", "pattern": {"Regex": "a+"}, "behavior": "Isolated", "invert": False}},
            "its pre-tokenizer Split is not one of those",
        ),
        (
            {"pre_tokenizer": {"type": "Sequence", "pretokenizers": [
                {"type": "WhitespaceSplit"},
                {"type": "Metaspace", "replacement": "_", "prepend_scheme": "first", "split": True}]}},
            "its pre-tokenizer Metaspace may look beyond",
        ),
    ],
)  # fmt: skip
def test_other_tokenizers_see_each_text_as_a_whole(change, why):
    spec = json.loads(tokenizer("gpt2").to_str())
    if change.get("added_tokens") == "normalized":
        change = change | {"added_tokens": [spec["added_tokens"][0] | {"normalized": True}]}
    made = tokenizers.Tokenizer.from_str(json.dumps(spec | change))
    transform = tokenise(made)
    assert why in transform.how
    texts = [*CORPUS, "", CORPUS[0], "caf\u0301e"]
    assert transform.columns(column(texts)).to_pylist() == ids_of(made, texts)


# ---- what comes in ---------------------------------------------------------------------------------------------------


def test_bytes_are_text_if_they_are_utf8():
    made = tokenizer("gpt2")
    raw = column(["caf\u00e9".encode(), b"\xff", None, b"ok\xc3"], pa.large_binary())
    with pytest.raises(BadValues) as caught:
        tokenise(made).columns(raw)
    assert sorted(caught.value.rows) == [1, 3]
    found = tokenise(made, errors="replace").columns(raw).to_pylist()
    assert found == [made.encode(t).ids if t else None for t in ("caf\u00e9", "\ufffd", None, "ok\ufffd")]


def test_a_column_of_something_else_is_refused():
    with pytest.raises(PipelineError, match="takes text, not int64"):
        tokenise(tokenizer("gpt2")).result(pa.int64())


@pytest.mark.usefixtures("stretch")
def test_a_row_that_cannot_be_cut_fails_beyond_a_length():
    made = tokenizer("gpt2")
    texts = ["short", "x" * 2000, "many words " * 500, "<|end|> many words " * 500]
    with pytest.raises(BadValues) as caught:
        tokenise(made, longest=1000).columns(column(texts))
    assert caught.value.rows == {1: "tokenise: 2,000 bytes without a place to cut; 1,000 are allowed"}
    del texts[1]
    with pytest.raises(BadValues) as caught:
        tokenise(made, longest="1KB").columns(column(texts))
    assert caught.value.rows == {2: "tokenise: 9,500 bytes as a whole; 1,000 are allowed"}
    assert tokenise(made).columns(column(texts)).to_pylist() == ids_of(made, texts)


def test_no_rows_and_empty_rows():
    transform = tokenise(tokenizer("gpt2"))
    assert transform.columns(column([])).to_pylist() == []
    assert transform.columns(column(["", "", None])).to_pylist() == [[], [], None]
    assert transform.columns(pa.array([], pa.large_string())).type == pa.large_list(pa.int32())


# ---- tokenizers ------------------------------------------------------------------------------------------------------


def test_a_path_or_a_folder(tmp_path):
    made = tokenizer("gpt2")
    made.save(str(tmp_path / "tokenizer.json"))
    assert tokenise(tmp_path) == tokenise(str(tmp_path / "tokenizer.json")) == tokenise(made)
    (tmp_path / "wrong.json").write_text('{"model": 3}')
    for path, why in (("none.json", "cannot be read"), ("wrong.json", "no tokenizer.json")):
        with pytest.raises(PipelineError, match=why) as caught:
            tokenise(tmp_path / path)
        assert caught.value.site.file == __file__


@pytest.mark.parametrize("wrong", [3, b"abc", [1]])
def test_what_is_no_tokenizer(wrong):
    with pytest.raises(PipelineError, match="is no tokenizer") as caught:
        tokenise(wrong)
    assert caught.value.site.file == __file__


def test_a_tokenizer_that_draws_is_refused():
    made = tokenizers.Tokenizer.from_str(tokenizer("gpt2").to_str())
    made.model.dropout = 0.1
    with pytest.raises(PipelineError, match="drops merges at random"):
        tokenise(made)


def test_equal_tokenizers_make_equal_transforms_that_travel():
    transform = tokenise(tokenizer("gpt2"))
    again = pickle.loads(pickle.dumps(transform))
    assert (again, hash(again), again.identity) == (transform, hash(transform), transform.identity)
    assert again(CORPUS[0]) == tokenizer("gpt2").encode(CORPUS[0]).ids
    other = tokenise(tokenizer("cl100k"))
    assert other != transform
    assert other.identity != transform.identity
    assert len(repr(transform)) < 300


def test_words_that_a_tokenizer_does_not_have_are_named_by_row():
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel({"to": 0, "be": 1}, unk_token="?"))
    made.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    transform = tokenise(made)
    assert transform.how.startswith("word by word")
    with pytest.raises(BadValues) as caught:
        transform.columns(column(["to be", "or", "be", "be not"]))
    assert sorted(caught.value.rows) == [1, 3]
    assert "the tokenizer raised" in caught.value.rows[1]
    assert transform.columns(column(["to be", "be"])).to_pylist() == [[0, 1], [1]]


def test_whether_the_library_works_in_threads_of_its_own(monkeypatch):
    made = tokenizers.Tokenizer.from_str(tokenizer("gpt2").to_str())
    made.enable_truncation(9)
    monkeypatch.delenv("TOKENIZERS_PARALLELISM", raising=False)
    assert [each.pooled for each in (tokenise(made), tokenise(tokenizer("gpt2")), tokenise(), tokenise(len))] == [
        True, False, False, False
    ]  # fmt: skip
    monkeypatch.setenv("TOKENIZERS_PARALLELISM", "false")
    assert not tokenise(made).pooled


def test_a_function_of_a_text():
    transform = tokenise(lambda text: [len(word) for word in text.split()])
    assert transform.how == "text by text: nothing is known of a function"
    assert transform.columns(column(["a bb", None, "", "a bb"])).to_pylist() == [[1, 2], None, [], [1, 2]]


def test_a_function_of_many_texts():
    seen = []

    def ids(texts):
        seen.append(list(texts))
        return [np.arange(len(text)) for text in texts]

    assert tokenise(ids, batched=True).columns(column(["ab", "c", "ab"])).to_pylist() == [[0, 1], [0], [0, 1]]
    assert seen == [["ab", "c"]]  # equal texts once


class Counted:
    made = 0

    def __init__(self):
        type(self).made += 1

    def __call__(self, text):
        return [len(text)]


def test_a_class_is_made_once():
    Counted.made = 0
    transform = tokenise(Counted)
    assert [transform(text) for text in ("a", "bb")] == [[1], [2]]
    assert Counted.made == 1


def fails(text):
    if "!" in text:
        raise KeyError(text)
    return {"large": [2**40], "word": "no", "half": [1.5], "none": None}.get(text, [1])


@pytest.mark.parametrize("batched", [False, True])
def test_a_function_that_fails_names_the_rows(batched):
    fn = (lambda texts: [fails(t) for t in texts]) if batched else fails
    with pytest.raises(BadValues) as caught:
        tokenise(fn, batched=batched).columns(column(["a", "!", "b", "!", "x!"]))
    assert caught.value.rows == {
        1: "the tokenizer raised KeyError: '!'",
        3: "the tokenizer raised KeyError: '!'",
        4: "the tokenizer raised KeyError: 'x!'",
    }
    with pytest.raises(BadValues) as caught:
        tokenise(fn, batched=batched).columns(column(["a", "large", "word", "half", "none"]))
    assert sorted(caught.value.rows) == [1, 2, 3, 4]
    assert all("is no list of ids" in why for why in caught.value.rows.values())


def test_a_function_that_gives_too_few_lists():
    with pytest.raises(BadValues, match="gave 1 lists for 2 texts"):
        tokenise(lambda texts: [[1]], batched=True).columns(column(["a", "b"]))


@pytest.mark.parametrize(
    ("pattern", "how"),
    [
        (r"""'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s""", "word by word"),
        (r"\S+|\s+", "text by text: its expression"),
    ],
)
def test_tiktoken(pattern, how):
    tiktoken = pytest.importorskip("tiktoken")
    made = tiktoken.Encoding("toy", pat_str=pattern, mergeable_ranks=gpt2_ranks(), special_tokens={"<|end|>": 700})
    transform = tokenise(made)
    assert transform.how.startswith(how)
    assert transform.tokenizer.token_to_id("<|end|>") == 700
    assert pickle.loads(pickle.dumps(transform)) == transform

    @given(st.lists(TEXTS, max_size=6))
    def run(texts):
        texts = [*CORPUS, "a<|end|>b", "", "trailing  ", *texts]
        assert transform.columns(column(texts)).to_pylist() == [made.encode_ordinary(t) for t in texts]

    run()


def test_a_fast_tokenizer_of_transformers():
    transformers = pytest.importorskip("transformers")
    made = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer("bert"), unk_token="[UNK]")
    assert tokenise(made).columns(column(CORPUS)).to_pylist() == made(CORPUS)["input_ids"]


# ---- words -----------------------------------------------------------------------------------------------------------


def test_words_are_forgotten_when_there_are_too_many(monkeypatch):
    monkeypatch.setattr(words, "_MOST_WORDS", 20)
    made = tokenizers.Tokenizer.from_str(tokenizer("gpt2").to_str().replace("<|end|>", "<|fresh|>"))
    transform = tokenise(made)
    known = transform.tokenizer.encoder().words
    for _ in range(3):
        for text in CORPUS:
            assert transform(text) == made.encode(text).ids
            assert len(known._known._codes) < 20


def test_long_words_are_not_kept():
    made = tokenizers.Tokenizer.from_str(tokenizer("gpt2").to_str().replace("<|end|>", "<|long|>"))
    transform = tokenise(made)
    texts = ["x" * 500, "y" * 15, "y" * 17, "a" + "\0" * 7, "a", "\0" * 3]
    for _ in range(2):
        assert transform.columns(column(texts)).to_pylist() == ids_of(made, texts)
    assert set(transform.tokenizer.encoder().words._known._codes) == {t.encode() for t in texts[1:]}


def test_threads_share_words():
    made = tokenizers.Tokenizer.from_str(tokenizer("gpt2").to_str().replace("<|end|>", "<|shared|>"))
    transform, rng = tokenise(made), random.Random(3)
    vocabulary = ["".join(rng.choices("abcdefgh", k=rng.randint(1, 20))) for _ in range(800)]
    columns = [[" ".join(rng.choices(vocabulary, k=40)) for _ in range(30)] for _ in range(24)]
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda texts: transform.columns(column(texts)).to_pylist(), columns, timeout=60))
    assert found == [ids_of(made, texts) for texts in columns]


# ---- bytes -----------------------------------------------------------------------------------------------------------


@given(st.lists(st.none() | st.text(max_size=6), max_size=6), st.booleans(), st.booleans())
def test_byte_level(texts, begin, end):
    transform = byte_level(begin="<bos>" if begin else None, end="<eos>" if end else None)
    found = transform.columns(column(texts)).to_pylist()
    assert found == [None if t is None else [257] * begin + list(t.encode()) + [258] * end for t in texts]
    assert [None if ids is None else transform.decode(ids) for ids in found] == texts


def test_byte_level_is_the_default_and_takes_any_bytes():
    assert tokenise()("Hi") == [72, 105]
    assert byte_level()(b"\xff\x00") == [255, 0]
    assert byte_level(specials=("<a>",)).vocab_size == 257
    for wrong in ({"begin": "<none>"}, {"specials": ("<a>", "<a>")}):
        with pytest.raises(PipelineError, match="byte_level"):
            byte_level(**wrong)
