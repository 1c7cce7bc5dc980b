"""Image operators in pipelines: the same images under any plan, executor and block size; errors that name the file."""

import numpy as np
import pytest

import cedar
from benchmarks.mutated_images import encoded, picture
from cedar.operators import image
from cedar.testing.compare import blocks_of


@pytest.fixture
def folder(tmp_path):
    for i in range(14):
        kind = ("jpeg", "png", "jpeg-progressive", "webp")[i % 4]
        (tmp_path / f"{i:02}.img").write_bytes(encoded(kind, picture(40 + 3 * i, 70 - 2 * i)))
    return tmp_path


def simclr(folder):
    p = cedar.read_files(f"{folder}/*.img").map(image.decode(), "bytes", into="image")
    for operator in (
        image.random_resized_crop(24), image.horizontal_flip(), image.color_jitter(0.4, 0.4, 0.4, 0.1, p=0.8),
        image.grayscale(p=0.2), image.gaussian_blur(3, p=0.5), image.to_float(),
        image.normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
    ):  # fmt: skip
        p = p.map(operator, "image")
    return p.shuffle(seed=3).select("path", "image").batch(4, last="keep")


def colors_first(folder):
    p = cedar.read_files(f"{folder}/*.img").map(image.decode(), "bytes", into="image")
    for operator in (
        image.to_float(), image.normalize((0.5, 0.5, 0.5), (0.2, 0.2, 0.2)), image.crop(2, 3, 20, 24),
        image.horizontal_flip(), image.channels_first(),
    ):  # fmt: skip
        p = p.map(operator, "image")
    return p.select("path", "image").batch(4, last="keep")


def batches(pipeline, **options):
    with pipeline.loader(seed=5, **options) as loader:
        return [(list(batch["path"]), np.array(batch["image"])) for batch in loader]


def same(left, right):
    return len(left) == len(right) and all(
        a[0] == b[0] and a[1].dtype == b[1].dtype and np.array_equal(a[1], b[1])
        for a, b in zip(left, right, strict=True)
    )


@pytest.mark.parametrize("make", [simclr, colors_first])
def test_plans_executors_and_block_sizes_do_not_show(folder, make):
    expected = batches(make(folder), plan="off", executor="inline")
    assert sum(len(images) for _, images in expected) == 14
    assert same(batches(make(folder), plan="auto", executor="inline"), expected)
    assert same(batches(make(folder), plan="auto", executor="threads", workers=2), expected)
    for rows in (1, 3):
        with blocks_of(rows):
            assert same(batches(make(folder), plan="off", executor="inline"), expected)


def test_crop_may_run_before_colors(folder):
    """The optimizer puts it there: the crop reads fewer pixels of the file, and what works on each works on fewer."""
    p = colors_first(folder)
    plan = p.optimize(profile=p.profile(seconds=0.2))
    with p.loader(plan=plan, executor="inline", seed=5) as loader:
        made = [(list(b["path"]), np.array(b["image"])) for b in loader]
        explained = loader.explain().partition("PHYSICAL PLAN")[2].partition("RULES")[0]
    assert same(made, batches(p, plan="off", executor="inline"))
    assert 0 < explained.index("map(Crop)") < explained.index("map(ToFloat)") < explained.index("map(Normalize)")


def test_a_damaged_file_is_named(folder):
    (folder / "05.img").write_bytes(encoded("jpeg")[:-300])
    with pytest.raises(cedar.RowError) as caught:
        batches(simclr(folder), plan="off", executor="inline")
    text = str(caught.value)
    assert "05.img" in text
    assert "map(Decode): the JPEG data is damaged: Corrupt JPEG data: premature end" in text


def test_damaged_files_are_skipped_if_asked_and_move_no_other(folder):
    expected = batches(simclr(folder), plan="off", executor="inline")
    (folder / "05.img").write_bytes(b"not an image")
    (folder / "06.img").write_bytes(encoded("png")[:300])
    with simclr(folder).loader(seed=5, plan="off", executor="inline", on_error=cedar.Skip(max_count=2)) as loader:
        found = {
            path: img for batch in loader for path, img in zip(batch["path"], np.array(batch["image"]), strict=True)
        }
    every = {path: img for paths, images in expected for path, img in zip(paths, images, strict=True)}
    assert {path for path in every if path not in found} == {
        path for path in every if path.endswith(("05.img", "06.img"))
    }
    assert all(np.array_equal(found[path], every[path]) for path in found)


@pytest.mark.parametrize("rows", [1, 2, 64])
def test_blocks_do_not_show_in_what_becomes_one_array(rows):
    """Of which kind it is, the first rows of the data tell, not those of the block."""
    images = [np.full((4, 5, 3 if i % 3 else 1), i, dtype=np.uint8) for i in range(9)]
    p = cedar.from_items([{"id": i, "image": each} for i, each in enumerate(images)]).map(image.resize((2, 2)), "image")
    with blocks_of(rows), p.loader(executor="inline", on_error=cedar.Skip(max_count=3)) as loader:
        found = {int(row["id"]): np.array(row["image"]) for row in loader}
    assert sorted(found) == [i for i in range(9) if i % 3]
    assert all((made == i).all() and made.shape == (2, 2, 3) for i, made in found.items())
    with pytest.raises(cedar.RowError, match=r"1 channel\(s\) of uint8 in a column of 3"), blocks_of(rows):
        list(p.loader(executor="inline"))


def test_boxes_go_along(folder):
    boxes = cedar.read_files(f"{folder}/*.img").map(image.decode(), "bytes", into="image")
    boxes = boxes.map(lambda path: [[5.0, 4.0, 30.0, 28.0], [1.0, 1.0, 9.0, 9.0]], "path", into="boxes")
    boxes = boxes.map(lambda path: [1, 2], "path", into="labels")
    p = (
        boxes.map(image.expand(fill=9), "image", "boxes")
        .map(image.iou_crop(), "image", "boxes", "labels")
        .map(image.resize((32, 32)), "image", "boxes")
        .map(image.horizontal_flip(), "image", "boxes")
        .map(image.sanitize_boxes(), "boxes", "labels")
        .drop("bytes")
    )
    rows = [dict(row) for row in p]
    assert len(rows) == 14
    for row in rows:
        found = np.array(row["boxes"], dtype=np.float32).reshape(-1, 4)
        assert row["image"].shape == (32, 32, 3)
        assert len(found) == len(row["labels"]) >= 1
        assert (found >= 0).all()
        assert (found <= 32).all()


def test_floats_are_made_behind_a_batch_before_anything_is_measured(folder):
    p = cedar.read_files(f"{folder}/*.img").map(image.decode(), "bytes", into="image").drop("bytes")
    p = p.map(image.resize((8, 8)), "image").cache().map(image.horizontal_flip(), "image")
    with p.map(image.to_float(), "image").batch(4, last="keep").loader(executor="inline") as loader:
        below, batch, above = loader.explain().partition("RULES")[0].partition("PHYSICAL")[2].partition("stream  batch")
    assert batch
    assert "ToFloat" in above
    assert "HorizontalFlip" in below
