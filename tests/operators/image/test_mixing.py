"""mixup and cutmix: batches of images and labels, against plain arithmetic, and in pipelines."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

import cedar
from cedar.core.columns import OBJECT, TensorType
from cedar.operators import image
from cedar.operators.draws import Draws
from tests.operators.image.toy_draws import MANY

ROWS = np.random.default_rng(0).random((6, 10, 8, 3)).astype(np.float32)
IDS = pa.array([0, 1, 2, 3, 0, 2])


def some(word):
    return Draws(np.array([word] * 6, dtype=np.uint64))


def one_hot(ids, classes):
    return np.eye(classes, dtype=np.float32)[ids.to_pylist()]


@pytest.mark.parametrize("word", range(5))
def test_mixup_blends_images_and_labels_alike(word):
    mixup = image.mixup(num_classes=4, alpha=0.4)
    made, labels = mixup.columns(ROWS, IDS, draws=some(word))
    share = mixup.describe(some(word), ROWS, IDS)[0]["share"]
    before = [5, 0, 1, 2, 3, 4]
    assert made.dtype == labels.dtype == np.float32
    np.testing.assert_allclose(made, share * ROWS + (1 - share) * ROWS[before], atol=1e-6)
    hot = one_hot(IDS, 4)
    np.testing.assert_allclose(labels, share * hot + (1 - share) * hot[before], atol=1e-6)


@pytest.mark.parametrize("first", [False, True])
def test_cutmix_pastes_one_part_and_labels_follow_its_area(first):
    cutmix, parts = image.cutmix(num_classes=4), 0
    for word in range(30):
        rows = np.ascontiguousarray(ROWS.transpose(0, 3, 1, 2)) if first else ROWS
        made, labels = cutmix.columns(rows, IDS, draws=some(word))
        made = made.transpose(0, 2, 3, 1) if first else made
        pasted = (made != ROWS).any(axis=(0, 3))
        assert np.array_equal(np.where(pasted[..., None], ROWS[[5, 0, 1, 2, 3, 4]], ROWS), made)
        tall, wide = pasted.any(axis=1).sum(), pasted.any(axis=0).sum()
        assert pasted.sum() == tall * wide  # one rectangle
        hot, share = one_hot(IDS, 4), 1 - pasted.mean()
        np.testing.assert_allclose(labels, share * hot + (1 - share) * hot[[5, 0, 1, 2, 3, 4]], atol=1e-6)
        parts += bool(pasted.any())
    assert parts > 20


def test_bytes_are_rounded_and_dense_labels_keep_their_type():
    rows = (ROWS * 255).astype(np.uint8)
    dense = np.random.default_rng(1).random((6, 3))
    mixup = image.mixup()
    made, labels = mixup.columns(rows, dense, draws=some(3))
    share = mixup.describe(some(3), rows, dense)[0]["share"]
    assert made.dtype == np.uint8
    assert np.abs(made - (share * rows + (1 - share) * np.roll(rows, 1, axis=0))).max() <= 0.501
    assert labels.dtype == np.float64


def test_p_is_the_share_of_batches():
    for kind in (image.mixup(3, p=0.25), image.cutmix(3, p=0.25)):
        images = np.zeros((1, 8, 8, 1), dtype=np.float32)
        told = [kind.describe(MANY.take(np.array([row])), images, None)[0]["share"] for row in range(2000)]
        assert abs(np.mean(np.array(told) < 1) - 0.25) < 0.04


def pipeline(kind):
    rows = [{"image": ROWS[n % 6] + n, "label": n % 4} for n in range(100)]
    return cedar.from_items(rows).shuffle(seed=3).batch(16).map(kind, "image", "label")


def read(p, **options):
    with p.loader(**options) as loader:
        return [(batch["image"], batch["label"]) for batch in loader]


@pytest.mark.parametrize("kind", [image.mixup(4, 0.2), image.cutmix(4)], ids=["mixup", "cutmix"])
def test_a_batch_is_the_same_on_any_executor_and_in_another_epoch_another(kind):
    wanted = read(pipeline(kind), executor="inline", plan="off")
    assert sum(len(images) for images, _ in wanted) == 100
    assert all(labels.shape == (len(images), 4) and images.dtype == np.float32 for images, labels in wanted)
    for options in ({"executor": "threads"}, {"executor": "processes", "workers": 2}):
        for mine, theirs in zip(read(pipeline(kind), **options), wanted, strict=True):
            assert all(np.array_equal(*pair) for pair in zip(mine, theirs, strict=True))
    other = read(pipeline(kind), executor="inline", epoch=1)
    assert not np.array_equal(other[0][1], wanted[0][1])


def test_without_a_batch_it_is_refused():
    p = cedar.from_items([{"image": ROWS[0], "label": 1}]).map(image.mixup(4), "image", "label")
    with pytest.raises(cedar.PipelineError, match="mixes the rows of a batch") as caught:
        list(p)
    assert "call it after .batch(n)" in str(caught.value)
    assert __file__ in str(caught.value)


def test_a_label_that_is_no_class_fails_its_row():
    rows = [{"image": ROWS[n], "label": 9 if n == 2 else n} for n in range(4)]
    p = cedar.from_items(rows).batch(4).map(image.mixup(4), "image", "label")
    with pytest.raises(cedar.RowError, match="the label 9"):
        list(p)
    with p.loader(on_error=cedar.Skip()) as loader:
        assert [len(batch["label"]) for batch in loader] == [3]


def test_types():
    kind, ids = TensorType((8, 8, 3), "uint8"), pa.int64()
    assert image.mixup(5).result(kind, ids) == (kind, TensorType((5,), "float32"))
    assert image.cutmix().result(kind, TensorType((5,), "float64")) == (kind, TensorType((5,), "float64"))
    for wrong in ((OBJECT, ids), (kind, pa.float64()), (kind, TensorType((4,), "float32"))):
        with pytest.raises(cedar.PipelineError):
            image.mixup(5).result(*wrong)
    with pytest.raises(cedar.PipelineError, match="one size before batch"):
        image.cutmix(5).result(OBJECT, ids)
    with pytest.raises(cedar.PipelineError, match="num_classes="):
        image.mixup().result(kind, ids)
    assert image.mixup(np.int64(5)).result(kind, ids) == (kind, TensorType((5,), "float32"))


@pytest.mark.parametrize(
    "make",
    [lambda: image.mixup(0), lambda: image.cutmix(2.5), lambda: image.mixup(3, alpha=0), lambda: image.mixup(p=2)],
)
def test_other_arguments_are_refused(make):
    with pytest.raises(cedar.PipelineError, match="mix"):
        make()
