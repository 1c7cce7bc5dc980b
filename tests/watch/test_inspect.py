"""inspect: a row's cells hold what a run makes of it, and next to it stands what was drawn for it there."""

import io
import subprocess
import sys
import wave

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import cedar
from cedar import PipelineError, Skip, col
from cedar.cli import main
from cedar.operators import audio, image
from cedar.operators.draws import Draws, keyed_generator
from cedar.operators.map import FilterFunction
from cedar.operators.recsys import Sampling
from cedar.operators.transform import Transform
from tests.watch.html_pages import Page
from tests.watch.toy_rows import ROWS, clips, pictures


def of_run(pipeline, column, **options):
    """What a loader gives, by id."""
    with pipeline.loader(**options) as loader:
        return {row["id"]: row[column] for row in loader}


def last(row):
    return row.cells[-1]


# ---- draws -----------------------------------------------------------------------------------------------------------


def test_crops_and_flips_are_those_of_a_run_with_the_same_seed_and_epoch():
    from PIL import Image

    p = cedar.from_items(pictures()).shuffle(seed=3).map(image.random_resized_crop(16), "image")
    p = p.map(image.horizontal_flip(), "image")
    run = of_run(p, "image", seed=7, epoch=2, executor="threads", workers=2)
    sheet = p.inspect(ROWS, seed=7, epoch=2)
    assert sheet.steps == ("from_items(list of 12)", "map(RandomResizedCrop)", "map(HorizontalFlip)")
    for row in sheet.rows:
        read, cut, flipped = row.cells
        top, left, height, width = (cut.draws[name] for name in ("top", "left", "height", "width"))
        part = Image.fromarray(read.values["image"][top : top + height, left : left + width])
        made = np.asarray(part.resize((16, 16), Image.Resampling.BILINEAR))
        assert np.array_equal(cut.values["image"], made)
        assert np.array_equal(flipped.values["image"], made[:, ::-1] if flipped.draws["flipped"] else made)
        assert np.array_equal(flipped.values["image"], run[read.values["id"]])
    assert {row.cells[2].draws["flipped"] for row in sheet.rows} == {True, False}
    assert p.inspect(1, seed=7).rows[0].cells[1].draws != sheet.rows[0].cells[1].draws


def test_a_crop_behind_decode_is_that_of_the_batch_that_a_loader_gives():
    from PIL import Image

    def jpeg(pixels):
        file = io.BytesIO()
        Image.fromarray(pixels).save(file, format="JPEG")
        return file.getvalue()

    rows = [{"id": row["id"], "bytes": jpeg(row["image"])} for row in pictures(6)]
    p = cedar.from_items(rows).map(image.decode(mode="RGB"), "bytes", into="image").drop("bytes")
    p = p.map(image.random_resized_crop(8), "image").map(image.horizontal_flip(), "image").batch(3)
    with p.loader(seed=5) as loader:
        batch = next(iter(loader))
    sheet = p.inspect(3, seed=5)
    assert np.array_equal(np.stack([last(row).values["image"] for row in sheet.rows]), batch["image"])
    assert sheet.notes == ("the sheet ends at batch(3): it makes batches",)


COLORS = [
    (image.color_jitter(0.4, 0.4, 0.4, 0.1), {"brightness", "contrast", "saturation", "hue"}),
    (image.gaussian_blur(5, sigma=(1.0, 2.0), p=0.5), {"sigma"}),
    (image.photometric_distort(), {"brightness", "contrast", "saturation", "hue", "channels"}),
    (image.solarize(128), {"threshold"}), (image.posterize(2), {"step"}), (image.grayscale(p=0.5), set()),
    (image.autocontrast(), set()), (image.equalize(), set()),
]  # fmt: skip


@pytest.mark.heavy
@pytest.mark.parametrize(("transform", "names"), COLORS, ids=lambda of: type(of).__name__)
def test_colors_change_where_they_are_said_to(transform, names):
    p = cedar.from_items(pictures()).map(transform, "image")
    run, seen = of_run(p, "image", seed=1), set()
    for row in p.inspect(ROWS, seed=1).rows:
        before, after = row.cells
        applied = after.draws["applied"]
        seen |= {applied, *after.draws} - {"applied"}
        assert np.array_equal(after.values["image"], run[after.values["id"]])
        assert applied is not np.array_equal(after.values["image"], before.values["image"])
    assert seen - {True, False} == names


def test_the_factors_of_a_jitter_stand_in_the_order_in_which_they_are_applied():
    p = cedar.from_items(pictures()).map(image.color_jitter(0.4, 0.4), "image")
    for row in p.inspect(ROWS).rows:
        changed = row.cells[0].values["image"]
        for name, factor in last(row).draws.items():
            if name != "applied":
                one = image.color_jitter(**{name: (factor, factor)})
                changed = one(changed, draws=Draws(np.zeros(1, dtype=np.uint64)))
        assert np.array_equal(changed, last(row).values["image"])


def test_boxes_move_with_the_image_and_padding_is_told():
    rows = [row | {"boxes": np.float32([[5, 5, 50, 30]])} for row in pictures()]
    p = cedar.from_items(rows).map(image.iou_crop(), "image", "boxes").map(image.expand(), "image", "boxes")
    for row in p.inspect(ROWS).rows:
        _, cut, canvas = row.cells
        assert cut.values["image"].shape[:2] == (cut.draws["height"], cut.draws["width"])
        above, left = canvas.draws["above"], canvas.draws["left"]
        assert canvas.values["image"].shape[0] == cut.draws["height"] + above + canvas.draws["below"]
        assert np.array_equal(canvas.values["boxes"], cut.values["boxes"] + np.float32([left, above, left, above]))
        assert cut.shown == ("image", "boxes")


def test_sound_tells_its_gain_its_part_and_its_speed():
    p = cedar.from_items(clips()).map(audio.random_gain(-6.0, 6.0), "clip").map(audio.random_crop(500), "clip")
    p = p.map(audio.random_time_stretch(0.8, 1.2), "clip")
    run = of_run(p, "clip", seed=4)
    for row in p.inspect(ROWS, seed=4).rows:
        read, gain, part, speed = row.cells
        louder = np.float32(read.values["clip"]) * np.float32(10 ** (gain.draws["db"] / 20))
        assert np.array_equal(gain.values["clip"], louder)
        assert np.array_equal(part.values["clip"], louder[part.draws["start"] : part.draws["stop"]])
        assert len(speed.values["clip"]) == round(500 / speed.draws["speed"])
        assert np.array_equal(speed.values["clip"], run[row.cells[0].values["id"]])


def test_a_random_part_of_a_file_is_told_in_its_own_samples():
    samples = np.arange(2000, dtype=np.int16)
    file = io.BytesIO()
    with wave.open(file, "wb") as out:
        out.setnchannels(1)
        out.setsampwidth(2)
        out.setframerate(1000)
        out.writeframes(samples.tobytes())
    p = cedar.from_items([{"file": file.getvalue()}] * 3).map(audio.decode_random(0.5), "file", into="clip")
    for row in p.inspect(3).rows:
        start, stop = last(row).draws["start"], last(row).draws["stop"]
        assert stop - start == 500
        assert np.array_equal(last(row).values["clip"] * 32768, samples[start:stop])


def test_masks_cover_what_they_are_said_to():
    spectrum = [{"s": np.ones((20, 50), np.float32)} for _ in range(ROWS)]
    p = cedar.from_items(spectrum).map(audio.time_mask(20, count=2), "s").map(audio.frequency_mask(9), "s")
    for row in p.inspect(ROWS).rows:
        expected = np.ones((20, 50), np.float32)
        for start, stop in row.cells[1].draws["masks"]:
            expected[:, start:stop] = 0
        for start, stop in row.cells[2].draws["masks"]:
            expected[start:stop] = 0
        assert np.array_equal(last(row).values["s"], expected)


def noisy(x, rng):
    return x + rng.random()


def some(x, rng):
    return rng.random() < 0.5


def test_a_function_is_given_the_generator_that_is_named():
    p = cedar.from_items([{"id": i} for i in range(ROWS)]).map(noisy, "id", into="noisy", random=True)
    p = p.apply(FilterFunction(some, ("id",), random=True))
    run, kept = of_run(p, "noisy", seed=9), set()
    for row in p.inspect(ROWS, seed=9).rows:
        rng, coin = (eval(cell.draws["rng"], {"keyed_generator": keyed_generator}) for cell in row.cells[1:])
        number = row.cells[0].values["id"] + rng.random()
        assert row.cells[1].values["noisy"] == number
        assert (coin.random() < 0.5) is (not last(row).end)
        if not last(row).end:
            kept.add((row.cells[0].values["id"], number))
    assert kept == set(run.items())


def test_sampling_keeps_the_rows_whose_number_is_below_the_rate():
    p = cedar.from_items([{"id": i} for i in range(50)]).apply(Sampling(0.5))
    rows = p.inspect(50).rows
    assert {row.cells[0].values["id"] for row in rows if not last(row).end} == set(of_run(p, "id"))
    assert all((last(row).draws["drawn"] < 0.5) is (not last(row).end) for row in rows)


class Jitter(Transform):
    random = True

    def result(self, *types):
        return pa.float64()

    def columns(self, *columns, draws):
        return pa.array(draws.uniform(1)[:, 0])


def test_a_transform_that_tells_nothing_of_its_own_tells_the_word_of_its_numbers():
    (row,) = cedar.from_items([{"x": 1.0}]).map(Jitter(), "x").inspect().rows
    draws = Draws(np.array([last(row).draws["word"]], dtype=np.uint64))
    assert last(row).values["x"] == draws.uniform(1)[0, 0]


def test_rows_below_a_concat_and_a_repeat_keep_the_draws_of_a_run():
    one, two = cedar.from_items(pictures(4)), cedar.from_items([row | {"id": row["id"] + 4} for row in pictures(4)])
    p = cedar.concat(one, two).map(image.random_resized_crop(8), "image")
    run = of_run(p, "image")
    sheet = p.inspect(4)
    assert all(np.array_equal(last(row).values["image"], run[last(row).values["id"]]) for row in sheet.rows)
    assert "only its first input is shown" in sheet.notes[0]
    twice = one.repeat(2).map(image.random_resized_crop(8), "image")
    with twice.loader() as loader:
        first = [row["image"] for row in loader][:4]
    assert all(np.array_equal(last(r).values["image"], f) for r, f in zip(twice.inspect(4).rows, first, strict=True))


# ---- how rows end ----------------------------------------------------------------------------------------------------


def bad(x):
    if x == 1:
        raise ValueError("<b>no & such luck</b>")
    return x


def test_rows_end_where_they_are_dropped_skipped_or_fail():
    p = cedar.from_items([{"x": i} for i in range(3)])
    dropped = p.filter(col("x") != 1).map(bad, "x").inspect()
    assert [last(row).end for row in dropped.rows] == ["", 'dropped by filter(col("x") != 1)', ""]
    assert [len(row.cells) for row in dropped.rows] == [3, 2, 3]
    failed = p.map(bad, "x").map(str, "x").inspect()
    assert "ValueError: <b>no & such luck</b>" in last(failed.rows[1]).end
    assert len(failed.rows[1].cells) == 2
    skipped = p.map(bad, "x", on_error=Skip()).inspect()
    assert last(skipped.rows[1]).end == "skipped: ValueError: <b>no & such luck</b>"
    assert any("3 rows" in note for note in failed.notes)


def test_an_operator_that_cannot_be_prepared_says_so_in_every_row():
    def never(x):
        raise ValueError("never")

    sheet = cedar.from_items([{"x": i} for i in range(2)]).map(never, "x").inspect()
    assert ["never" in last(row).end for row in sheet.rows] == [True, True]


def test_a_row_that_becomes_several_is_followed_by_its_first():
    def parts(row):
        return [{"y": row["x"]}] * row["x"]

    sheet = cedar.from_items([{"x": 0}, {"x": 3}]).flat_map(parts).map(lambda y: -y, "y").inspect()
    none, three = sheet.rows
    assert last(none).end.startswith("dropped by flat_map(")
    assert three.cells[1].note == "3 rows result from it; the first is shown"
    assert last(three).values == {"y": -3}
    assert "gone: x" in str(sheet)


@pytest.mark.parametrize(
    ("add", "why"),
    [
        (lambda p: p.map_batches(lambda t: t, "x", size=2), "it sees 2 rows at a time"),
        (lambda p: p.sample("x"), "not work on single rows"),
        (lambda p: cedar.zip(p, p.rename({"x": "y"})), "a row of each input"),
        (lambda p: p.batch(2), "it makes batches"),
    ],
)
def test_the_sheet_ends_at_what_is_no_work_on_single_rows(add, why):
    sheet = add(cedar.from_items([{"x": i + 1} for i in range(4)]).map(bad, "x", on_error=Skip())).inspect()
    assert len(sheet.steps) == 2
    assert why in sheet.notes[-1]


def test_what_a_function_changes_in_place_is_not_seen_before_it():
    def zeroed(values):
        values[:] = 0
        return values

    rows = [{"x": np.ones((3, 2))}, {"x": np.ones((4, 2))}]
    for row in cedar.from_items(rows).map(zeroed, "x").inspect().rows:
        assert row.cells[0].values["x"].all()
        assert not last(row).values["x"].any()
    assert rows[0]["x"].all()


def test_places_are_files_and_columns_that_stay_are_only_named(tmp_path):
    pq.write_table(pa.table({"a": [1, 2], "b": ["x", "y"]}), tmp_path / "t.parquet")
    sheet = cedar.read_parquet(str(tmp_path / "t.parquet")).with_columns(a=col("a") + 1).inspect(1)
    (row,) = sheet.rows
    assert row.place.endswith("t.parquet, row 0")
    assert last(row).shown == ("a",)
    assert "a 2; as before: b" in str(sheet)


@pytest.mark.parametrize("wrong", [{"rows": 0}, {"rows": "2"}, {"epoch": -1}, {"seed": 0.5}])
def test_numbers_that_are_none_are_refused(wrong):
    with pytest.raises(PipelineError, match=next(iter(wrong))):
        cedar.from_items([{"x": 1}]).inspect(**wrong)


def test_no_rows_make_a_sheet_without_any():
    sheet = cedar.from_arrow(pa.table({"x": pa.array([], pa.int64())})).map(bad, "x", dtype=int).inspect()
    assert sheet.rows == ()
    assert "0 rows before and after" in str(sheet)


def test_the_module_needs_neither_pillow_nor_torch():
    code = "import sys, cedar.watch.inspect; assert not {'PIL', 'torch'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


# ---- the command -----------------------------------------------------------------------------------------------------

PIPELINE = """
import numpy as np
import cedar
from cedar.operators import image

rows = [{"image": np.full((8, 8, 3), i, dtype=np.uint8)} for i in range(6)]
p = cedar.from_items(rows).map(image.horizontal_flip(), "image").batch(2)
"""


@pytest.fixture
def target(tmp_path, monkeypatch):
    (tmp_path / "inspected.py").write_text(PIPELINE)
    monkeypatch.chdir(tmp_path)
    return "inspected.py:p"


def test_the_command_prints_the_sheet_or_writes_a_page(target, tmp_path, capsys):
    assert main(["inspect", target, "--rows", "2", "--seed", "3", "--epoch", "1"]) == 0
    said = capsys.readouterr().out
    assert said.startswith("2 rows before and after each operator, seed 3, epoch 1")
    assert said.count("[flipped ") == 2
    assert main(["inspect", target, "--out", "page.html"]) == 0
    assert capsys.readouterr().out == "wrote page.html\n"
    page = Page((tmp_path / "page.html").read_text(encoding="utf-8"))
    assert len(page.all("img")) == 8
    assert "the sheet ends at batch(2" in page.text


def test_the_command_says_what_is_wrong(target, capsys):
    assert main(["inspect", target, "--out", "no/such/folder.html"]) == 1
    assert "cannot be written" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["inspect", target, "--rows", "0"])
