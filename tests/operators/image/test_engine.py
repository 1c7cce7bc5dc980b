"""The chain: whatever runs as one kernel is, bit for bit, what its operators make one after the other."""

from __future__ import annotations

import itertools

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import cedar
from benchmarks.mutated_images import encoded, mutated, picture
from cedar.core.columns import TensorType, objects
from cedar.operators import image
from cedar.operators.draws import Draws
from cedar.operators.image.base import IMAGES
from cedar.operators.transform import BadValues, Link, as_tuple

SIDES = st.integers(1, 24)

SPATIAL = st.one_of(
    st.builds(image.resize, st.one_of(SIDES, st.tuples(SIDES, SIDES)), st.sampled_from(["bilinear", "nearest"])),
    st.builds(image.random_resized_crop, st.tuples(SIDES, SIDES)),
    st.builds(image.random_crop, st.tuples(SIDES, SIDES), st.integers(0, 9), st.just(7)),
    st.builds(image.center_crop, st.tuples(SIDES, SIDES), st.sampled_from([0, None])),
    st.builds(image.crop, st.integers(-3, 9), st.integers(-3, 9), SIDES, SIDES, st.sampled_from([7, None])),
    st.builds(image.horizontal_flip, st.sampled_from([0.0, 0.5, 1.0])),
    st.builds(image.vertical_flip, st.sampled_from([0.0, 0.5, 1.0])),
    st.builds(image.erasing, st.sampled_from([0.0, 0.5, 1.0]), st.just((0.1, 0.9)), value=st.just(5)),
    st.builds(image.pad, st.tuples(*[st.integers(0, 4)] * 4), st.just(3)),
    st.builds(image.expand, st.just(0), st.just((1.0, 2.0))),
    st.just(image.iou_crop()),
)
PIXELS = st.sampled_from([
    image.color_jitter(0.4, 0.4, 0.4, 0.1), image.grayscale(p=0.5), image.solarize(128, p=0.5), image.gaussian_blur(3),
    image.rand_augment(), image.perspective(fill=3),
])  # fmt: skip
LAST = st.sampled_from([
    (), (image.to_float(),), (image.to_float(), image.normalize((0.4, 0.5, 0.6), (0.2, 0.3, 0.4))),
    (image.channels_first(),), (image.to_float(), image.channels_first()),
])  # fmt: skip


@st.composite
def files(draw):
    """Image files of several sizes, some of them damaged, some missing."""
    made = []
    for _ in range(draw(st.integers(0, 5))):
        kind = draw(st.sampled_from(["jpeg", "jpeg", "jpeg-progressive", "png", "jpeg-gray"]))
        data = encoded(kind, picture(draw(st.integers(4, 60)), draw(st.integers(4, 60))))
        match draw(st.integers(0, 5)):
            case 0:
                data = mutated(data, draw(st.integers(0, 500)))
            case 1:
                data = None
        made.append(data)
    return made


@st.composite
def chains(draw):
    """Operators in an order that makes sense, each with the columns that it reads."""
    pixels_before = draw(st.lists(st.one_of(SPATIAL, PIXELS), max_size=5))
    links = [image.decode()] if draw(st.booleans()) else []
    links += pixels_before
    last = draw(LAST)
    links += last
    beside = draw(st.booleans())
    made = []
    for operator in links:
        takes_boxes = operator.arity is None and (beside or isinstance(operator, image.iou_crop))
        names = ("image", "boxes", "labels") if takes_boxes else ("image",)
        made.append(Link(operator, ("bytes",) if isinstance(operator, image.decode) else names, names))
    return made


def one_by_one(links, columns, draws):
    """Each operator by itself on the rows that are left: the columns, and which rows failed where."""
    columns, rows, failed = dict(columns), np.arange(len(next(iter(columns.values())))), {}
    for place, (link, drawn) in enumerate(zip(links, draws, strict=True)):
        while True:
            options = {} if drawn is None else {"draws": drawn.take(rows)}
            try:
                made = link.transform.columns(*(columns[name] for name in link.reads), **options)
            except BadValues as bad:
                failed |= {int(rows[row]): (place, why) for row, why in bad.rows.items()}
                keep = np.array([i for i in range(len(rows)) if i not in bad.rows], dtype=np.int64)
                rows = rows[keep]
                columns = {
                    name: c.take(pa.array(keep)) if isinstance(c, pa.Array) else c[keep] for name, c in columns.items()
                }
                continue
            break
        columns |= dict(zip(link.writes, as_tuple(made), strict=True))
    return columns, rows, failed


def same(left, right):
    if isinstance(left, pa.Array):
        return left.equals(right)
    if left.dtype == object:
        return len(left) == len(right) and all(
            np.array_equal(a, b) and np.asarray(a).dtype == np.asarray(b).dtype
            for a, b in zip(left, right, strict=True)
        )
    return left.dtype == right.dtype and np.array_equal(left, right)


@given(chains(), files(), st.integers(0, 1 << 60), st.booleans())
def test_is_its_operators_one_by_one(links, data, seed, tensors):
    if not links:
        return
    n = len(data)
    rng = np.random.default_rng(seed % (1 << 32))
    columns = {}
    if isinstance(links[0].transform, image.decode):
        columns["bytes"] = pa.array(data, pa.large_binary())
    elif tensors:
        columns["image"] = np.stack([picture(20, 30) for _ in range(n)]) if n else np.zeros((0, 20, 30, 3), np.uint8)
    else:
        columns["image"] = objects([picture(*rng.integers(4, 40, 2)) if rng.random() < 0.9 else None for _ in range(n)])
    if any(len(link.reads) > 1 for link in links):
        boxes = [np.sort(rng.uniform(0, 40, (int(rng.integers(0, 4)), 2, 2)), axis=1).reshape(-1, 4) for _ in range(n)]
        columns["boxes"] = pa.array([b.tolist() for b in boxes], pa.large_list(pa.list_(pa.float32(), 4)))
        columns["labels"] = pa.array(
            [list(range(len(b) + (rng.random() < 0.05))) for b in boxes], pa.large_list(pa.int64())
        )
    for below, above in itertools.pairwise(links):
        assert IMAGES.joins([below], above)
    draws = [Draws(rng.integers(0, 1 << 63, n).astype(np.uint64)) if link.transform.random else None for link in links]
    expected, rows, failed = one_by_one(links, columns, draws)
    done, faults = IMAGES.run(links, columns, draws)
    assert {row: (fault.link, fault.why) for row, fault in faults.items()} == failed
    assert set(done) == {name for link in links for name in link.writes}
    for name, column in done.items():
        left = column.take(pa.array(rows)) if isinstance(column, pa.Array) else column[rows]
        if len(rows) or isinstance(left, pa.Array):
            assert same(left, expected[name]), name


def test_result_types_hold_for_blocks_without_rows():
    links = [Link(t, ("bytes",) if i == 0 else ("image",), ("image",)) for i, t in enumerate(
        [image.decode(mode="GRAY"), image.resize((5, 4)), image.to_float(), image.channels_first()]
    )]  # fmt: skip
    done, faults = IMAGES.run(links, {"bytes": pa.array([], pa.large_binary())}, [None] * 4)
    assert not faults
    assert done["image"].shape == (0, 1, 5, 4)
    assert done["image"].dtype == np.float32


def test_images_that_differ_in_channels_do_not_become_one_tensor():
    column = objects([picture(6, 6), picture(6, 6)[..., :1]])
    with pytest.raises(BadValues) as caught:
        image.resize((3, 3)).columns(column)
    assert list(caught.value.rows) == [1]
    assert "1 channel(s) of uint8 in a column of" in caught.value.rows[1]
    kept = image.horizontal_flip(0.0).columns(column, draws=Draws(np.arange(2, dtype=np.uint64)))
    assert [k.shape for k in kept] == [(6, 6, 3), (6, 6, 1)]


def test_each_image_of_a_mixed_column_is_judged_by_itself():
    rgb = picture(6, 9)
    several = [rgb[..., :1], rgb, rgb.astype(np.float32), np.dstack([rgb, rgb[..., :1]]), rgb]
    operators = [image.color_jitter(contrast=0.5), image.to_float(), image.normalize((0.4, 0.5, 0.6), (0.2, 0.3, 0.4))]
    links = [Link(operator, ("image",), ("image",)) for operator in operators]
    words = np.arange(5, dtype=np.uint64)

    def run(rows):
        return IMAGES.run(links, {"image": objects([several[r] for r in rows])}, [Draws(words[rows]), None, None])

    whole, faults = run([0, 1, 2, 3, 4])
    assert {row: fault.link for row, fault in faults.items()} == {0: 2, 2: 0, 3: 0}
    for row in range(5):
        alone, fault = run([row])
        if row in faults:
            assert fault == {0: faults[row]}
        else:
            assert np.array_equal(alone["image"][0], whole["image"][row])


@pytest.mark.parametrize("last", [image.color_jitter(0.4), image.gaussian_blur(3), image.to_float()])
def test_floats_of_many_sizes_fail_where_bytes_are_taken(last):
    p = cedar.from_items([{"image": np.zeros((3 + i, 4, 3), np.uint8)} for i in range(5)])
    p = p.map(image.to_float(), "image")
    with pytest.raises(
        cedar.RowError, match=r"takes images, \(height, width, channels\) of uint8, not float32"
    ) as told:
        list(p.map(last, "image"))
    assert f"map({type(last).__name__})" in str(told.value)
    assert list(p.map(last, "image", on_error=cedar.Skip())) == []


def test_channels_first_is_written_by_the_pass_below_it():
    links = [Link(t, ("image",), ("image",)) for t in (image.solarize(9, p=1.0), image.channels_first())]
    for column in (np.stack([picture(6, 9)] * 2), objects([picture(6, 9), picture(4, 5)])):
        made = IMAGES.run(links, {"image": column}, [None, None])[0]["image"]
        for before, after in zip(column, made, strict=True):
            assert after.flags.c_contiguous
            assert np.array_equal(after, image.solarize(9, p=1.0)(before).transpose(2, 0, 1))


def test_a_small_crop_does_not_keep_the_large_image():
    big = picture(400, 400)
    made = image.decode().columns(pa.array([encoded("png", big)], pa.large_binary()))
    links = [
        Link(image.decode(), ("b",), ("i",)),
        Link(image.crop(5, 5, 8, 8), ("i",), ("i",)),
        Link(image.iou_crop(), ("i", "x"), ("i", "x")),
    ]
    boxes = objects([np.array([[0, 0, 8, 8]], dtype=np.float32)])
    done, _ = IMAGES.run(
        links,
        {"b": pa.array([encoded("png", big)], pa.large_binary()), "x": boxes},
        [None, None, Draws(np.array([1], dtype=np.uint64))],
    )
    assert made[0].shape == (400, 400, 3)
    kept = done["i"][0]
    assert kept.base is None or kept.base.nbytes <= 8 * 8 * 3


def test_type_of_a_run_is_what_the_types_say():
    links = [image.decode(), image.random_resized_crop(9), image.horizontal_flip(), image.to_float()]
    kind = pa.large_binary()
    for operator in links:
        kind = operator.result(kind)
    assert kind == TensorType((9, 9, 3), "float32")
