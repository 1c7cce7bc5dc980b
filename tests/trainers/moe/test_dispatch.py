"""Dispatch against a plain model: who sends which copies where, and which are dropped."""

import math
from fractions import Fraction
from itertools import pairwise

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional

from cedar.trainers.moe.dispatch import kept_copies, limits, plan_dispatch, take_rows
from cedar.trainers.moe.placement import place


@st.composite
def routed(draw):
    """Ranks with any number of tokens, a placement that may or may not fit them, a rule."""
    ranks, experts = draw(st.integers(1, 4)), draw(st.integers(1, 6))
    slots = -(-experts // ranks) + draw(st.integers(0, 3))
    k = draw(st.integers(1, min(2, experts)))
    numbers = torch.Generator().manual_seed(draw(st.integers(0, 10**6)))
    chosen, gates = [], []
    for tokens in draw(st.lists(st.integers(0, 12), min_size=ranks, max_size=ranks)):
        weights = torch.rand(tokens, experts, generator=numbers) ** 3
        weights[:, 0] *= draw(st.sampled_from([1, 5]))
        found = weights.topk(k, dim=1)
        chosen.append(found.indices)
        gates.append(found.values)
    popularity = draw(st.lists(st.integers(0, 9), min_size=experts, max_size=experts))
    capacity = draw(st.sampled_from([None, 0.5, 1.0, 1.25]))
    return chosen, gates, place(popularity, ranks, slots), capacity, draw(st.sampled_from(["position", "probability"]))


@given(routed())
def test_every_copy_reaches_a_replica_of_its_expert_or_is_dropped_by_the_rule(case):
    chosen, gates, placement, capacity, drop = case
    ranks, experts = placement.ranks, len(placement.replicas)
    counts = torch.stack([torch.bincount(c.flatten(), minlength=experts) for c in chosen])
    ways = [
        plan_dispatch(chosen[rank], gates[rank], counts, placement, rank, capacity=capacity, drop=drop)
        for rank in range(ranks)
    ]
    copies = [(rank, at) for rank in range(ranks) for at in range(chosen[rank].numel())]
    expert_of = {copy: int(chosen[copy[0]].flatten()[copy[1]]) for copy in copies}
    gate_of = {copy: float(gates[copy[0]].flatten()[copy[1]]) for copy in copies}
    takes = math.ceil(Fraction(str(capacity)) * len(copies) / (ranks * placement.slots)) if capacity else len(copies)

    outboxes = []
    for rank, way in enumerate(ways):
        sent = [(rank, at) for at in way.copies.tolist()]
        assert len(sent) == sum(way.send)
        for at, place_ in enumerate(way.places.flatten().tolist()):
            assert place_ == (sent.index((rank, at)) if (rank, at) in sent else len(sent))
        cuts = torch.tensor([0, *way.send]).cumsum(0).tolist()
        outboxes.append([sent[a:b] for a, b in pairwise(cuts)])
    kept = set()
    for rank, way in enumerate(ways):
        inbox = [copy for source in range(ranks) for copy in outboxes[source][rank]]
        assert way.receive == [len(outboxes[source][rank]) for source in range(ranks)]
        ordered = [inbox[at] for at in way.order.tolist()]
        assert [ordered[at] for at in way.undo.tolist()] == inbox
        held = placement.hosts[rank]
        assert [expert_of[copy] for copy in ordered] == [
            e for e, n in zip(held, way.rows, strict=True) for _ in range(n)
        ]
        for expert, rows in zip(held, way.rows, strict=True):
            mine = placement.experts[rank * placement.slots : (rank + 1) * placement.slots].count(expert)
            total = sum(int(way.kept[source, expert]) for source in range(ranks))
            share = total / placement.replicas[expert] * mine
            assert abs(rows - share) <= mine  # loads of replicas differ by one at most
            assert rows <= takes * mine
        kept.update(inbox)
    for expert in range(experts):
        mine = [copy for copy in copies if expert_of[copy] == expert]
        limit = takes * placement.replicas[expert]
        stay = [copy for copy in mine if copy in kept]
        assert len(stay) == min(len(mine), limit)
        if drop == "position":
            assert stay == mine[:limit]
        else:
            for rank in range(ranks):
                own = [copy for copy in mine if copy[0] == rank]
                lost = [gate_of[copy] for copy in own if copy not in kept]
                assert not lost or max(lost) <= min([gate_of[c] for c in own if c in kept], default=math.inf)
                fair = Fraction(len(own) * limit, max(1, len(mine)))
                assert len(mine) <= limit or abs(len(own) - len(lost) - fair) < 1


def test_a_capacity_is_exact_in_decimals():
    counts = torch.tensor([[10, 0]])
    placed = place([1, 0], 1, 10)
    assert limits(counts, placed, 1.1).tolist() == [9 * 2, 2]  # ceil(1.1 * 10 / 10), not ceil(1.1000000000000001)
    assert limits(counts, placed, None).tolist() == [10, 10]
    assert kept_copies(counts, torch.tensor([4, 4]), "position").tolist() == [[4, 0]]


def test_taking_rows_has_the_gradient_of_indexing():
    rows = torch.randn(5, 3, dtype=torch.float64, requires_grad=True)
    index = torch.tensor([4, 0, 5, 0, 2])  # 5: a row of zeros
    back = torch.tensor([[1, 3], [5, 5], [4, 5], [5, 5], [0, 5]])
    taken = take_rows(rows, index, back)
    assert torch.equal(taken, functional.pad(rows, (0, 0, 0, 1))[index])
    assert torch.autograd.gradcheck(lambda r: take_rows(r, index, back), (rows,))
    assert take_rows(rows[:0], torch.tensor([], dtype=torch.int64), torch.zeros(0, 1, dtype=torch.int64)).shape == (
        0,
        3,
    )
