"""Batches with groups of equal lists, and what must hold of them."""

from __future__ import annotations

import numpy as np

import cedar
from tests.toy_sessions import sessions

GROUP = [["a", "b"]]


def toy(rows=96, samples=8, repeats=0.8, **more):
    return cedar.from_arrow(sessions(rows, samples, repeats, **more))


def plain(batch):
    """A batch with every row of its groups by itself."""
    return {
        name: value.expand()[_called(value, name)] if isinstance(value, cedar.InverseKeyedJaggedTensor) else value
        for name, value in batch.items()
    }


def _called(group, name):
    assert name in group.keys
    return name


def same(one, other):
    assert one.keys() == other.keys()
    for name, value in other.items():
        if isinstance(value, cedar.JaggedTensor):
            assert one[name] == value, name
        else:
            assert np.array_equal(np.asarray(one[name]), np.asarray(value)), name


def invariants(batch):
    for group in {id(v): v for v in batch.values() if isinstance(v, cedar.InverseKeyedJaggedTensor)}.values():
        assert list(dict.fromkeys(group.inverse_lookup.tolist())) == list(range(group.unique))
        rows = list(zip(*(map(tuple, group[key].to_list()) for key in group.keys), strict=True))
        assert len(set(rows)) == group.unique <= max(len(group), 0)


def grouped_names(batch):
    return {name for name, value in batch.items() if isinstance(value, cedar.InverseKeyedJaggedTensor)}


def run(p, **options):
    with p.loader(**options) as loader:
        return list(loader)
