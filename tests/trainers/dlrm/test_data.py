"""The data of a run: vocabularies, sizes of tables, ids of strings, and what a checkpoint keeps of them."""

import os

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

import cedar
from cedar.cli import main
from cedar.core.errors import CedarError
from cedar.recommendation import load_vocabularies, save_vocabularies
from cedar.trainers.common.checkpoint import Checkpoints
from cedar.trainers.common.group import Group
from cedar.trainers.dlrm import data as data_module
from cedar.trainers.dlrm.trainer import VOCABULARIES, Trainer
from tests.trainers.dlrm.toy_clicks import ITEMS, options

FEATURES = [
    {"column": "word", "vocabulary": "word", "missing": "oov"},
    {"column": "seen", "vocabulary": "seen", "pooling": "mean"},
]
DATA = {"dense": [], "log": [], "session": "session", "dedup": [["seen"]], "batch": 16, "held_out": 0, "shuffle": False}


@pytest.fixture
def files(tmp_path):
    """A log of words and of ids that are not numbers of rows, and the folder of its vocabularies."""
    rng = np.random.default_rng(0)
    rows = 64
    seen = [[int(i) * 10**12 for i in rng.integers(0, 6, 3)] for _ in range(rows // 8) for _ in range(8)]
    table = pa.table({
        "session": np.arange(rows) // 8,
        "word": [None if i % 9 == 0 else f"w{i % 5}" if i % 16 else "rare" + str(i) for i in range(rows)],
        "seen": pa.array([seen[i // 8 * 8] for i in range(rows)], pa.large_list(pa.int64())),
        "label": rng.integers(0, 2, rows).astype(np.int8),
    })  # fmt: skip
    path, folder = str(tmp_path / "log.parquet"), str(tmp_path / "words")
    pq.write_table(table, path)
    fitted = cedar.fit(cedar.read_parquet(path), cedar.preprocessing.Vocabulary(["word", "seen"], min_count=2))
    made = {name: fitted[name] for name in fitted.columns}
    save_vocabularies(made, folder)
    return path, folder, made


def chosen_of(path, folder, features=FEATURES, **data):
    return options(path, features=features, data=DATA | {"vocabularies": [folder]} | data)


def test_ids_and_sizes_of_tables_are_those_of_the_vocabularies(files):
    path, folder, made = files
    trainer = Trainer(chosen_of(path, folder), Group())
    assert {f.column: f.rows for f in trainer.options.features} == {n: made[n].size for n in ("word", "seen")}
    (batch,) = trainer.batches.sample(1)
    table = pq.read_table(path)
    numbers = dict(zip(made["word"].values.to_pylist(), made["word"].ids.to_pylist(), strict=True))
    words = table["word"].to_pylist()[:16]
    assert batch["word"].tolist() == [numbers.get(word, 0) for word in words]  # nulls and rare ones alike
    assert (words[0], words[9]) == (None, None)
    assert "rare16" not in numbers
    seen = made["seen"].transform()
    wanted = [list(seen(ids)) for ids in table["seen"].to_pylist()[:16]]
    assert batch["seen"].expand()["seen"].to_list() == wanted
    trainer.train_step()
    trainer.close()


def test_a_checkpoint_holds_them_so_that_they_load_from_there(files, tmp_path):
    path, folder, made = files
    trainer = Trainer(chosen_of(path, folder), Group())
    saved = Checkpoints(str(tmp_path / "saved"), trainer).save()
    trainer.close()
    kept = os.path.join(saved, VOCABULARIES)
    assert load_vocabularies(kept)["word"].values.equals(made["word"].values)
    other = Trainer(chosen_of(path, kept), Group())
    (one,), (two,) = trainer.batches.sample(1), other.batches.sample(1)
    assert one["word"].tolist() == two["word"].tolist()
    other.close()


def test_the_commands_make_and_use_them(files, tmp_path, capsys):
    path, _, _ = files
    folder, config = str(tmp_path / "made"), tmp_path / "run.toml"
    assert main(["data", "vocab", path, folder, "--columns", "word,seen", "--min-count", "2"]) == 0
    config.write_text(f"""
features = [{{ column = "word", vocabulary = "word", missing = "oov" }}, {{ column = "seen", vocabulary = "seen" }}]
[data]
paths = "{path}"
batch = 16
session = "session"
vocabularies = ["{folder}"]
executor = "inline"
[model]
width = 4
[run]
folder = "{tmp_path / "run"}"
threads = 1
device = "cpu"
""")
    assert main(["train", "dlrm", str(config)]) == 0
    assert "wrote" in capsys.readouterr().out
    (saved,) = (tmp_path / "run" / "checkpoints").iterdir()
    assert sorted(load_vocabularies(saved / VOCABULARIES)) == ["seen", "word"]


@pytest.mark.parametrize(
    ("features", "data", "told"),
    [
        ([{"column": "word", "vocabulary": "words"}], {}, "no vocabulary for 'words'"),
        ([{"column": "word", "vocabulary": "word", "rows": 3}], {}, "has 3 rows; the vocabulary 'word'"),
        (
            [{"column": "word", "vocabulary": "word"}, {"column": "seen", "vocabulary": "seen", "table": "word"}],
            {}, "one vocabulary",
        ),
        ([{"column": "word", "vocabulary": "word"}], {"vocabularies": []}, "no vocabulary for 'word'"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_told_before_the_first_step(files, features, data, told):
    path, folder, _ = files
    with pytest.raises(CedarError) as failed:
        Trainer(chosen_of(path, folder, features, **data), Group())
    assert told in str(failed.value)


def test_a_folder_without_vocabularies_is_told(files, tmp_path):
    path, _, _ = files
    os.makedirs(tmp_path / "none")
    with pytest.raises(CedarError, match="no vocabularies in"):
        Trainer(chosen_of(path, str(tmp_path / "none")), Group())


def test_ids_may_share_rows_and_gaps_may_be_empty(tmp_path):
    path = str(tmp_path / "gaps.parquet")
    hist = pa.array([[1, -2], None, [1000]] * 4, pa.large_list(pa.int64()))
    pq.write_table(pa.table({"session": [1] * 12, "item": [-1, 5, 70] * 4, "hist": hist, "label": [0, 1, 1] * 4}), path)
    features = [
        {"column": "item", "rows": 60, "ids": "modulo"},
        {"column": "hist", "rows": 60, "table": "item", "ids": "modulo", "missing": "empty"},
    ]
    data = {"dense": [], "log": [], "held_out": 0, "batch": 12, "dedup": "off", "shuffle": False}
    trainer = Trainer(options(path, features=features, data=data), Group())
    (batch,) = trainer.batches.sample(1)
    assert batch["item"].tolist() == [59, 5, 10] * 4
    assert batch["hist"].to_list() == [[1, 58], [], [40]] * 4
    trainer.train_step()
    trainer.close()
    assert ITEMS == 60


def test_the_remainder_of_narrow_integers_does_not_wrap(tmp_path):
    path = str(tmp_path / "narrow.parquet")
    hist = pa.array([[100, 250], [], [255]] * 4, pa.large_list(pa.uint8()))
    item = pa.array([100, -56, 127] * 4, pa.int8())
    pq.write_table(pa.table({"session": [1] * 12, "item": item, "hist": hist, "label": [0, 1, 1] * 4}), path)
    features = [{"column": name, "rows": 200, "ids": "modulo"} for name in ("item", "hist")]
    data = {"dense": [], "log": [], "held_out": 0, "batch": 12, "dedup": "off", "shuffle": False}
    trainer = Trainer(options(path, features=features, data=data), Group())
    (batch,) = trainer.batches.sample(1)
    assert batch["item"].tolist() == [100, 144, 127] * 4
    assert batch["hist"].to_list() == [[100, 50], [], [55]] * 4
    trainer.close()


def test_batches_are_on_the_device_of_the_run_when_they_are_taken(log, monkeypatch):
    """Each column was copied in the step, while the device waited."""
    monkeypatch.setattr(data_module, "device_of", torch.device)
    batches = data_module.Batches(options(log, run={"device": "meta"}), Group())
    try:
        for batch in (next(batches), next(batches.sample(1)), next(batches.evaluation())):
            columns = [batch["item"], batch["d0"], batch["label"], batch["tags"].values]
            assert {column.device.type for column in columns} == {"meta"}
    finally:
        batches.close()
