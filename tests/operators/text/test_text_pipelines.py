"""Texts through whole pipelines: the same rows as plain Python on every executor and plan."""

import unicodedata

import cloudpickle
import numpy as np
import pytest

import cedar
from cedar import col
from cedar.operators import text
from tests.operators.text.toy_tokenizers import CORPUS, tokenizer

LINES = [f"  {line} {i}  " if i % 3 else "" for i, line in enumerate(CORPUS * 25)]
LENGTH, SIZE, EOS = 64, 4, 0


@pytest.fixture
def path(tmp_path):
    file = tmp_path / "lines.txt"
    lines = [line.replace("\n", " ").replace("\r", " ") for line in LINES]
    file.write_bytes("\n".join(lines).encode())
    return file


def pipeline(path):
    return (
        cedar.read_text(str(path))
        .filter(col("text") != "")
        .map(text.normalize("NFC", lower=True), "text")
        .map(text.tokenize(tokenizer("gpt2")), "text", into="ids")
        .map(text.truncate(40), "ids")
        .map(text.special_tokens(end="<|end|>", tokenizer=tokenizer("gpt2")), "ids")
        .pack(LENGTH, "ids")
        .batch(SIZE, last="keep")
    )


def plain():
    """The tokens of all rows, one after the other, padded at the end."""
    found = []
    for line in LINES:
        line = line.replace("\n", " ").replace("\r", " ")
        if line:
            found += tokenizer("gpt2").encode(unicodedata.normalize("NFC", line).lower().strip()).ids[:40]
            found.append(EOS)
    return np.array(found + [0] * (-len(found) % LENGTH), np.int32).reshape(-1, LENGTH)


@pytest.mark.parametrize(("executor", "plan"), [("inline", "off"), ("threads", "auto"), ("processes", "auto")])
def test_every_executor_packs_the_same_tokens(path, executor, plan):
    with pipeline(path).loader(executor=executor, plan=plan, workers=2) as loader:
        for _ in range(2):
            batches = list(loader)
            assert np.array_equal(np.concatenate([batch["ids"] for batch in batches]), plain())
    assert batches[0]["ids"].dtype == np.int32
    ids, segments = (np.concatenate([batch[name] for batch in batches]) for name in ("ids", "segment_ids"))
    begins = np.diff(segments, axis=1) == 1
    assert np.array_equal(begins, (ids[:, :-1] == EOS) & (segments[:, 1:] > 0))  # a document ends in its last token


def test_a_transform_travels_by_value():
    transform = cloudpickle.loads(cloudpickle.dumps(text.tokenize(tokenizer("bert"))))
    assert transform(CORPUS[0]) == tokenizer("bert").encode(CORPUS[0]).ids


def test_a_file_that_is_no_text_is_named(tmp_path):
    for name, data in (("a.txt", b"fine"), ("b.txt", b"caf\xe9"), ("c.txt", b"fine too")):
        (tmp_path / name).write_bytes(data)
    files = cedar.read_files(str(tmp_path / "*.txt"))
    for step in (text.normalize(), text.tokenize(tokenizer("gpt2"))):
        with pytest.raises(cedar.RowError, match="not valid UTF-8: byte 0xe9 at byte 3") as caught:
            list(files.map(step, "bytes", into="out"))
        assert "b.txt" in str(caught.value)
        assert __file__ in str(caught.value)
        rest = list(files.map(step, "bytes", into="out", on_error=cedar.Skip(max_count=1)))
        assert [row["path"][-5:] for row in rest] == ["a.txt", "c.txt"]


def test_types_are_known_beforehand(path):
    schema = pipeline(path).schema
    assert str(schema["ids"]) == str(schema["segment_ids"]) == "int32[64]"
    numbers = cedar.from_items([{"x": 1}])
    with pytest.raises(cedar.PipelineError, match="takes text, not int64"):
        numbers.map(text.normalize(), "x").schema  # noqa: B018


@pytest.mark.parametrize(("old", "new"), [("normalise", "normalize"), ("tokenise", "tokenize")])
def test_british_names_still_work_and_warn(old, new):
    with pytest.warns(DeprecationWarning, match=f"text.{old} was renamed to text.{new}"):
        assert getattr(text, old) is getattr(text, new)
