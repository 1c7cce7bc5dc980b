"""Lines of plans that fit a terminal: nothing is lost, and none is too wide."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from cedar.pipeline.explain_text import join_parts, with_heading
from cedar.profile.text import WIDTH

WORDS = st.lists(st.sampled_from(["one", "two-and-a-half", "a" * 40, "x" * 80]), min_size=1, max_size=6).map(" ".join)


@given(st.lists(WORDS, min_size=1, max_size=8), st.sampled_from(["NOTE", "RULES", "PREDICTION"]))
def test_all_words_come_once_behind_the_head(items: list[str], head: str):
    lines = with_heading(head, items)
    assert max(map(len, lines)) <= WIDTH
    assert " ".join(lines).split() == [head, *" ".join(dict.fromkeys(items)).split()]
    assert all(line.startswith(" " * 7) for line in lines[1:])


@given(st.integers(1, 20), st.integers(1, 12))
def test_what_does_not_fit_is_counted(count: int, room: int):
    lines = with_heading("NOTE", [f"item {i}" for i in range(count)], room, more=": print(plan)")
    shown = [line.removeprefix("NOTE").strip() for line in lines]
    if count <= room:
        assert shown == [f"item {i}" for i in range(count)]
        return
    whole = max(room - 1, 1)
    assert shown == [f"item {i}" for i in range(whole)] + [f"... {count - whole} more: print(plan)"]


@given(st.lists(WORDS, min_size=1, max_size=6), st.none() | WORDS)
def test_a_chain_has_an_arrow_between_parts_and_its_remark_at_the_end(parts: list[str], detail: str | None):
    lines = join_parts("  1. read  ", parts, detail or "")
    assert max(map(len, lines)) <= WIDTH
    told = f"1. read {' -> '.join(parts)} {f'[{detail}]' if detail else ''}"
    assert " ".join(lines).split() == told.split()
