"""Row keys do not know in what block they are."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from cedar.core.cursor import Keys, concat_keys, hash_ints

PART = st.integers(-1, 5)
ROWS = st.lists(
    st.tuples(st.integers(0, 99), PART, PART.map(abs), PART.map(abs), st.integers(0, 3)), min_size=1, max_size=8
)


def alone(rows: list[tuple[int, ...]]) -> list[Keys]:
    """Each row in its own block, where a component is one number."""
    return [Keys(np.array([row]), file, sub, repeat, branch) for row, sub, file, repeat, branch in rows]


@given(ROWS, st.data())
def test_what_is_derived_from_a_key_is_the_same_in_any_block(rows, data):
    counts = np.array(data.draw(st.lists(st.integers(0, 3), min_size=len(rows), max_size=len(rows))))
    apart, together = alone(rows), concat_keys(alone(rows))
    for derive in (
        lambda keys, counts: keys,
        lambda keys, counts: keys.within(2),
        lambda keys, counts: keys.expand(counts),
        lambda keys, counts: keys.expand(counts).expand(np.full(int(counts.sum()), 2)),
        lambda keys, counts: keys.items(counts + 7),
    ):
        expected = [
            h for i, keys in enumerate(apart) for h in derive(keys, counts[i : i + 1]).hash(hash_ints(3)).tolist()
        ]
        assert derive(together, counts).hash(hash_ints(3)).tolist() == expected
