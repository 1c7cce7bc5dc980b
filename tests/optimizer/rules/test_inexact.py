"""inexact: where it applies, what it says, and that nothing happens unless it is asked for."""

import pyarrow as pa
import pytest

pytest.importorskip("numba")

import cedar
from cedar.core.errors import PlanError
from cedar.operators import image
from cedar.optimizer.rewrite import rewrite
from cedar.optimizer.rules import inexact
from cedar.plan import graph
from cedar.plan.data import Plan
from cedar.plan.saved import plan_from, text_of
from cedar.plan.steps.facts import facts_of
from tests.optimizer.plan_lines import decided, rewritten


def files(*operators, into="image"):
    p = cedar.from_arrow(pa.table({"bytes": pa.array([b"", b""])})).map(image.decode(), "bytes", into="image")
    for operator in operators:
        p = p.map(operator, "image", into=into)
    return p


def changed(pipeline, **options):
    return [n.operator.label() for n in graph.walk(rewritten(pipeline, inexact, **options)[0])
            if not getattr(n.operator, "exact", True)]  # fmt: skip


APPLIES = [
    [image.resize(8)], [image.random_resized_crop(8)], [image.horizontal_flip(), image.resize((8, 8))],
    [image.crop(0, 0, 4, 4), image.resize(8, interpolation="bicubic"), image.grayscale()],
]  # fmt: skip


@pytest.mark.parametrize("operators", APPLIES)
def test_decoding_below_resampling_may_be_scaled(operators):
    p = files(*operators)
    assert changed(p, exact=False) == ["map(Decode)"]
    (told,) = decided(p, inexact, exact=False)
    assert told.startswith("applied  inexact: map(Decode): JPEG files at 1/2, 1/4 or 1/8, where R")


def test_nothing_is_inexact_unless_asked_for():
    assert changed(files(image.resize(8)), exact=True) == []
    assert decided(files(image.resize(8)), inexact, exact=True) == []


KEPT = [
    [image.resize(8, antialias=False)], [image.resize(8, interpolation="nearest")], [image.horizontal_flip()],
    [image.grayscale(), image.resize(8)],
]  # fmt: skip


@pytest.mark.parametrize("operators", KEPT)
def test_where_it_does_not_apply(operators):
    assert changed(files(*operators), exact=False) == []


def test_others_that_need_the_whole_image_get_it():
    assert changed(files(image.resize(8), into="small"), exact=False) == []
    p = files()
    both = cedar.zip(p.map(image.resize(8), "image"), p.rename({"image": "b", "bytes": "c"}))
    assert changed(both, exact=False) == []


def test_a_saved_plan_says_so_and_needs_leave():
    p = files(image.resize((8, 8)))
    done = rewrite(facts_of(p.node, p.node, lambda node: False, exact=False), (inexact,))
    plan = Plan(p.node, done.root, done.decisions, sweeps=done.sweeps)
    assert "map(Decode), not exact" in str(plan)
    loaded = plan_from(text_of(plan), p)
    assert [getattr(n.operator, "exact", True) for n in graph.walk(loaded.root)] == [True, False, True]
    with pytest.raises(PlanError, match="within a tolerance"):
        p.loader(plan=loaded)
    p.loader(plan=loaded, exact=False)
