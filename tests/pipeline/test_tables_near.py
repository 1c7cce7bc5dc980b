"""drop_near_duplicates, with a stand-in for rensa that compares whole sets, so that what is like what is known."""

import random
import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest

import cedar
from cedar.core.packages import library
from cedar.pipeline.repeats import shingles


class Sketch:
    def __init__(self, num_perm: int, seed: int) -> None:
        self.held: set[str] = set()

    def update(self, items: list[str]) -> None:
        self.held |= set(items)

    def jaccard(self, other: "Sketch") -> float:
        return len(self.held & other.held) / max(len(self.held | other.held), 1)


class Index:
    def __init__(self, threshold: float, num_perm: int, num_bands: int) -> None:
        assert num_perm % num_bands == 0
        self.numbers: list[int] = []

    def insert(self, number: int, sketch: Sketch) -> None:
        self.numbers.append(number)

    def query(self, sketch: Sketch) -> list[int]:
        return self.numbers


@pytest.fixture
def rensa(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    module: Any = ModuleType("rensa")
    module.RMinHash, module.RMinHashLSH = Sketch, Index
    monkeypatch.setitem(sys.modules, "rensa", module)
    library.cache_clear()
    yield
    library.cache_clear()


WORDS = "one two three four five six seven eight nine ten".split()
TEXTS = [" ".join(WORDS), " ".join(WORDS).upper() + "!", "another text of its own", None, "", " ".join(WORDS[:8]), None]


@pytest.mark.usefixtures("rensa")
@pytest.mark.parametrize(("threshold", "left"), [(0.8, [0, 2, 3, 4, 5, 6]), (0.5, [0, 2, 3, 4, 6])])
def test_texts_that_are_like_an_earlier_one_go(threshold: float, left: list[int]) -> None:
    rows = cedar.from_items([{"x": i, "text": text} for i, text in enumerate(TEXTS)])
    for pipeline in (rows, rows.shuffle(seed=1)):
        found = pipeline.drop_near_duplicates("text", threshold=threshold)
        for world in (1, 2):
            loaders = [
                found.batch(2, last="keep").loader(rank=rank, world=world, executor="inline", format="arrow")
                for rank in range(world)
            ]
            assert sorted(x for loader in loaders for batch in loader for x in batch["x"].to_pylist()) == left


@pytest.mark.usefixtures("rensa")
def test_what_is_like_what_left_stays() -> None:
    chain = [" ".join(WORDS[i:] + [f"w{i}{j}" for j in range(i)]) for i in range(4)]
    rows = cedar.from_items([{"x": i, "text": text} for i, text in enumerate(chain)])
    sets = [set(shingles(text, 1)) for text in chain]
    stay: list[int] = []
    for i, own in enumerate(sets):
        if not any(len(own & sets[j]) / len(own | sets[j]) >= 0.7 for j in stay):
            stay.append(i)
    assert [row["x"] for row in rows.drop_near_duplicates("text", threshold=0.7, words=1)] == stay
    assert 1 < len(stay) < 4


def test_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = cedar.from_items([{"text": "a", "n": 1}])
    with pytest.raises(cedar.PipelineError, match="not strings"):
        rows.drop_near_duplicates("n")
    with pytest.raises(cedar.PipelineError, match="threshold=0"):
        rows.drop_near_duplicates("text", threshold=0)
    monkeypatch.setitem(sys.modules, "rensa", None)
    library.cache_clear()
    with pytest.raises(cedar.PipelineError, match="needs rensa") as caught:
        list(rows.drop_near_duplicates("text"))
    assert "pip install 'cedar-data[near-duplicates]'" in str(caught.value)
    library.cache_clear()


@pytest.mark.parametrize(("threshold", "left"), [(0.8, {"first"}), (0.99, {"first", "near"})])
def test_with_rensa_itself(threshold: float, left: set[str]) -> None:
    pytest.importorskip("rensa")
    draw, rows = random.Random(0), []
    for _ in range(20):
        words = [f"w{draw.randrange(500)}" for _ in range(60)]
        near = [*words[:30], "other", *words[31:]]
        rows += [{"kind": "first", "text": " ".join(words)}, {"kind": "near", "text": " ".join(near)}]
    found = cedar.from_items(rows).drop_near_duplicates("text", threshold=threshold)
    assert [row["kind"] for row in found] == [row["kind"] for row in rows if row["kind"] in left]
