"""Batches that are rebuilt, of this rank and of others."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import cedar
from cedar import PipelineError, col
from cedar.cli import main
from tests.engine.delivery.few_rows import in_batches, rows, xs
from tests.toy_runs import plain, run


def test_another_ranks_batch_is_refused_where_its_place_is_unknown():
    loaders = [in_batches(10, last="keep").loader(steps=2, rank=rank, world=2) for rank in range(2)]
    for epoch in range(3):
        got = [xs(loader) for loader in loaders]
        if epoch == 0:
            assert (
                in_batches(10, last="keep").loader(steps=2, rank=0, world=2).read(0, rank=1)["x"].tolist() == got[1][0]
            )
    with pytest.raises(cedar.PipelineError, match="only rank 1 knows"):
        loaders[0].read(0, rank=1)


PIPELINES = {
    "known": lambda: rows(31).shuffle(window=9).batch(3, last="keep"),
    "unknown": lambda: rows(31).filter(lambda x: x % 4 > 0, "x").shuffle(window=9).batch(3, last="keep"),
    "padded": lambda: rows(31).drop("l").shuffle().batch(4, last="pad"),
    "rows": lambda: rows(11).shuffle(),
}


@pytest.mark.parametrize("name", PIPELINES)
def test_any_rank_reads_what_another_rank_got(name: str) -> None:
    p = PIPELINES[name]()
    got = [[plain(b) for b in p.loader(rank=r, world=3)] for r in range(3)]
    with p.loader(rank=1, world=3) as loader:
        for step in (2, 0, 1, 1, 3):
            for rank in range(3):
                if step < len(got[rank]):
                    assert plain(loader.read(step, rank)) == got[rank][step]
        assert plain(loader.read(0)) == got[1][0]
        assert [plain(b) for b in loader] == got[1], "reading does not disturb the loop"


def test_reading_again_after_resumes_and_changes_of_world() -> None:
    p = PIPELINES["known"]()
    states = [run(p.loader(rank=r, world=2), 2)[1] for r in range(2)]
    rest = []
    for rank in range(3):
        loader = p.loader(rank=rank, world=3)
        loader.load_state_dict(states)
        rest.append([plain(b) for b in loader])
    with p.loader(rank=0, world=3) as loader:
        loader.load_state_dict(states)
        for rank in range(3):
            assert [plain(loader.read(2 + i, rank)) for i in range(len(rest[rank]))] == rest[rank]
        with pytest.raises(PipelineError, match="redistributed"):
            loader.read(1)


def test_reading_with_steps_crosses_epochs_of_the_data() -> None:
    p = rows(10).shuffle().batch(2)
    got = [[plain(b) for b in p.loader(rank=r, world=2, steps=7)] for r in range(2)]
    with p.loader(rank=0, world=2, steps=7) as loader:
        assert [plain(loader.read(i, r)) for r in range(2) for i in range(7)] == got[0] + got[1]


# ---- batches read again by step --------------------------------------------------------------------------------------


def test_what_is_committed_cannot_be_read() -> None:
    with rows().batch(2).loader() as loader:
        loader.read(4)
        loader.commit(4)
        with pytest.raises(PipelineError, match="committed"):
            loader.read(4)
        with pytest.raises(PipelineError, match="committed"):
            loader.read(0)
        assert loader.read(5)["x"].tolist() == [10, 11]
        for step, rank in ((99, 0), (5, 7)):
            with pytest.raises(PipelineError):
                loader.read(step, rank)


# ---- locate and where ------------------------------------------------------------------------------------------------


CALLS: list[int] = []


def called(x: int) -> int:
    CALLS.append(x)
    return x


def fails_on_tens(x: int) -> int:
    return x + 0 * (1 // (x % 10))


@pytest.fixture
def files(tmp_path):
    for number in range(4):
        rows = {"id": list(range(number * 100, number * 100 + 100))}
        pq.write_table(pa.table(rows), tmp_path / f"{number}.parquet", row_group_size=25)
    return str(tmp_path / "*.parquet")


def two_sources(files):
    return cedar.concat(cedar.read_parquet(files), cedar.from_items([{"id": 1000 + i} for i in range(50)]))


LOCATED_IN = {
    "mapped": lambda files: cedar.read_parquet(files).map(called, "id").with_columns(y=col("id") + 1),
    "shuffled": lambda files: cedar.read_parquet(files).map(called, "id").shuffle(seed=3),
    "repeated": lambda files: cedar.read_parquet(files).repeat(2).shuffle(seed=3).skip(7),
    "joined": lambda files: two_sources(files).shuffle(seed=1),
    "mixed": lambda files: cedar.mix([(cedar.read_parquet(files), 0.7), (two_sources(files), 0.3)], stop="all"),
    "filtered": lambda files: cedar.read_parquet(files).filter(col("id") % 3 == 0).shuffle(seed=3),
    "skipping": lambda files: cedar.read_parquet(files).map(fails_on_tens, "id", on_error=cedar.Skip()),
}
FROM_COUNTS = {"mapped", "shuffled", "repeated", "joined", "mixed"}


def number(row):
    """The id of a row, by where it is."""
    if row.url.endswith(".parquet"):
        return int(row.url.rpartition("/")[2][0]) * 100 + row.row
    return 1000 + row.row


@pytest.mark.heavy
@pytest.mark.parametrize("name", LOCATED_IN)
@pytest.mark.parametrize("world", [1, 2])
def test_every_row_is_named(files, name, world):
    pipeline = LOCATED_IN[name](files).batch(8, last="keep")
    for rank in range(world):
        options = {"seed": 5, "rank": rank, "world": world, "executor": "inline", "epoch": 1}
        with pipeline.loader(**options) as loader:
            batches = [batch["id"].tolist() for batch in loader]
        CALLS.clear()
        with pipeline.loader(**options) as loader:
            for step, batch in enumerate(batches):
                found = [loader.locate(step, i) for i in range(len(batch))]
                assert [number(each.row) for each in found] == batch
                assert {each.ran for each in found} == {name not in FROM_COUNTS}
                assert found[0].row.epoch == 1
            assert loader.locate(0).row == found[0].row or len(batches) > 1  # and back again
    if name in FROM_COUNTS:
        assert CALLS == []


def test_operators_are_those_that_the_row_passes(files):
    joined = cedar.concat(
        cedar.read_parquet(files).map(called, "id"),
        cedar.from_items([{"id": 1000}]).rename({"id": "n"}).rename({"n": "id"}),
    )
    with joined.batch(8, last="keep").loader(executor="inline") as loader:
        first, last = loader.locate(0), loader.locate(50)
    assert first.operators == ("map(called)", "concat", "batch(8, last='keep')")
    assert last.row.url.startswith("from_items")
    assert "map(called)" not in last.operators
    assert "row 0, epoch 0" in str(last)
    assert "test_replay.py" in str(last)


def test_what_is_not_there(files):
    with cedar.read_parquet(files).batch(8).loader(executor="inline") as loader:
        with pytest.raises(cedar.PipelineError, match="50 steps"):
            loader.locate(50)
        with pytest.raises(cedar.PipelineError, match=r"8 row\(s\)"):
            loader.locate(0, 8)
        with pytest.raises(cedar.PipelineError):
            loader.locate(-1)
    skipping = LOCATED_IN["skipping"](files).loader(executor="inline")
    with skipping, pytest.raises(cedar.PipelineError, match="may be skipped"):
        skipping.locate(0)


def test_a_step_and_a_rank_to_read_are_numbers():
    with cedar.from_items([{"x": 1}]).batch(1).loader(executor="inline") as loader:
        for arguments, message in (((-1,), r"read\(step\) is -1"), (("0",), "'0'"), ((0, "0"), r"read\(rank\)")):
            with pytest.raises(cedar.PipelineError, match=message):
                loader.read(*arguments)


def test_a_file_whose_name_begins_with_a_dot_is_found(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / ".notes.txt").write_text("a\nb\n")
    with cedar.read_text(".notes.txt").loader(executor="inline") as loader:
        for file in (".notes.txt", "./.notes.txt"):
            assert [place.step for place in loader.where(file, 0)] == [0]


def test_rows_without_batches(files):
    with cedar.read_parquet(files).shuffle(seed=2).loader(executor="inline") as loader:
        assert [number(loader.locate(step).row) for step in range(400)] == [row["id"] for row in loader]


@pytest.mark.parametrize("stop", [5, 25])  # within the epoch, and after its last batch
def test_a_state_names_rows_on_the_command_line(stop, files, tmp_path, capsys, monkeypatch):
    (tmp_path / "pipes.py").write_text(
        f"import cedar\ntrain = cedar.read_parquet({files!r}).shuffle(seed=4).batch(8)\n", encoding="utf-8"
    )
    target = f"{tmp_path / 'pipes.py'}:train"
    with cedar.cli.load_pipeline(target).loader(seed=9, rank=1, world=2, subgroup=True, executor="inline") as loader:
        batches = [batch["id"].tolist() for _, batch in zip(range(stop), loader, strict=False)]
        (tmp_path / "state.json").write_text(json.dumps(loader.state_dict()), encoding="utf-8")
    assert main(["locate", target, str(tmp_path / "state.json"), "3", "2"]) == 0
    wanted = batches[3][2]
    assert f"{wanted // 100}.parquet, row {wanted % 100}, epoch 0" in capsys.readouterr().out
    assert main(["locate", target, str(tmp_path / "none.json"), "3"]) == 1
    assert "cannot be read" in capsys.readouterr().err


def test_batches_are_read_forward_however_many_there_are():
    with cedar.from_items([{"x": i} for i in range(3000)]).loader(executor="inline") as loader:
        assert [loader.read(step)["x"] for step in range(3000)] == list(range(3000))


@pytest.mark.heavy
@pytest.mark.parametrize("name", LOCATED_IN)
@pytest.mark.parametrize("world", [1, 2])
def test_where_a_row_is_delivered(files, name, world):
    pipeline = LOCATED_IN[name](files).batch(8, last="keep")
    delivered: dict[int, list[tuple[int, int, int]]] = {}
    loaders = [pipeline.loader(seed=5, rank=r, world=world, executor="inline", epoch=1) for r in range(world)]
    for rank, loader in enumerate(loaders):
        for step, batch in enumerate(loader):
            for i, value in enumerate(batch["id"].tolist()):
                delivered.setdefault(value, []).append((rank, step, i))
        loader.set_epoch(1)
    for value in (0, 37, 99, 120, 250, 399):
        at = f"{value // 100}.parquet", value % 100
        found = loaders[0].where(*at)
        if name == "filtered" and world > 1:  # each rank knows its own
            found += loaders[1].where(*at)
        assert sorted((each.rank, each.step, each.index) for each in found) == sorted(delivered.get(value, []))
        assert all(number(each.row) == value and each.epoch == 1 for each in found)
    assert loaders[0].where("9.parquet", 0) == []


@pytest.mark.parametrize("world", [1, 2])
@pytest.mark.parametrize("fit", ["concat", "best"])
def test_all_documents_of_a_packed_row_are_named_and_found(tmp_path, fit, world):
    for part in range(2):
        ids = [[100 * part + i] * (1 + i * 7 % 30) for i in range(80)]
        pq.write_table(pa.table({"ids": ids}), tmp_path / f"{part}.parquet", row_group_size=20)
    sources = [
        cedar.read_parquet(f"{tmp_path}/{part}.parquet").filter(lambda ids: len(ids) != 8, "ids") for part in (0, 1)
    ]
    pipeline = cedar.mix([(p.shuffle(seed=1).pack(64, "ids", fit=fit), 1.0) for p in sources], stop="all")
    seen = set()
    for rank in range(world):
        pipelined = pipeline.batch(3, last="keep").loader(rank=rank, world=world, executor="inline")
        with pipelined as loader:
            for step, batch in enumerate(list(loader)):
                loader.set_epoch(0)
                for i, (row, segments) in enumerate(zip(batch["ids"], batch["segment_ids"], strict=True)):
                    documents = list(dict.fromkeys(row[segments > 0].tolist()))
                    found = loader.locate(step, i)
                    assert [100 * int(each.url[-9]) + each.row for each in found.rows] == documents
                    assert (found.row.url, found.row.row) == (found.rows[0].url, found.rows[0].row)
                    if step == 1:
                        for each in found.rows:
                            assert (step, i) in {(w.step, w.index) for w in loader.where(each.url, each.row)}
                    seen |= set(documents)
    assert seen == {100 * part + i for part in (0, 1) for i in range(80) if 1 + i * 7 % 30 != 8}


def test_where_single_rows_and_fixed_steps_end(files):
    pipeline = cedar.read_parquet(files).shuffle(seed=3)
    with pipeline.loader(executor="inline") as loader:
        rows = [row["id"] for row in loader]
        loader.set_epoch(0)
        [place] = loader.where("2.parquet", 50)
        assert (rows[place.step], place.index) == (250, 0)
    endless = pipeline.repeat().batch(8)
    with endless.loader(executor="inline") as loader, pytest.raises(cedar.PipelineError, match="no end"):
        loader.where("2.parquet", 50)
    with endless.loader(executor="inline", steps=150) as loader:
        found = [(place.step, place.index) for place in loader.where("2.parquet", 50)]
        batches = [batch["id"].tolist() for batch in loader]
    assert found == [(step, batch.index(250)) for step, batch in enumerate(batches) if 250 in batch]
    assert len(found) >= 2


def test_a_state_with_exact_counts_names_rows_on_the_command_line(files, tmp_path, capsys):
    made = f"cedar.read_parquet({files!r}).filter(cedar.col('id') % 7 == 0).batch(8)"
    (tmp_path / "pipes.py").write_text(f"import cedar\ntrain = {made}\n")
    target = f"{tmp_path}/pipes.py:train"
    with cedar.cli.load_pipeline(target).loader(counts="exact", rank=0, world=1, executor="inline") as loader:
        wanted = next(iter(loader))["id"].tolist()[3]
        (tmp_path / "state.json").write_text(json.dumps(loader.state_dict()))
    assert main(["locate", target, f"{tmp_path}/state.json", "0", "3"]) == 0
    assert f"{wanted // 100}.parquet, row {wanted % 100}, epoch 0" in capsys.readouterr().out


def test_where_from_a_state_on_the_command_line(files, tmp_path, capsys):
    made = f"cedar.read_parquet({files!r}).shuffle(seed=3).batch(8)"
    (tmp_path / "pipes.py").write_text(f"import cedar\ntrain = {made}\n")
    target = f"{tmp_path}/pipes.py:train"
    with cedar.read_parquet(files).shuffle(seed=3).batch(8).loader(seed=4, executor="inline") as loader:
        next(iter(loader))
        [place] = loader.where("1.parquet", 7)
        (tmp_path / "state.json").write_text(json.dumps(loader.state_dict()))
    assert main(["where", target, f"{tmp_path}/state.json", "1.parquet", "7"]) == 0
    assert f"rank 0, step {place.step}, row {place.index}: " in capsys.readouterr().out
    assert main(["where", target, f"{tmp_path}/state.json", "7.parquet", "7"]) == 1
    assert "is in no batch of epoch 0" in capsys.readouterr().out


def test_rows_of_ranks_that_agreed_are_named_on_the_command_line(files, tmp_path, capsys):
    made = f"cedar.read_parquet({files!r}).filter(cedar.col('id') % 3 == 0).shuffle(seed=3).batch(8)"
    (tmp_path / "pipes.py").write_text(f"import cedar\ntrain = {made}\n")
    target = f"{tmp_path}/pipes.py:train"
    p = cedar.cli.load_pipeline(target)

    def take(rank):
        with p.loader(rank=rank, world=2, agree=tmp_path / "agree", executor="inline") as loader:
            batches = [batch["id"].tolist() for _, batch in zip(range(6), loader, strict=False)]
            return batches, loader.state_dict()

    with ThreadPoolExecutor(2) as pool:
        ranks = list(pool.map(take, (0, 1)))
    for batches, state in ranks:
        (tmp_path / "state.json").write_text(json.dumps(state))
        wanted = batches[5][2]
        assert main(["locate", target, f"{tmp_path}/state.json", "5", "2"]) == 0
        assert f"{wanted // 100}.parquet, row {wanted % 100}, epoch 0" in capsys.readouterr().out


def test_states_that_name_no_rows_on_the_command_line(files, tmp_path, capsys):
    (tmp_path / "pipes.py").write_text(f"import cedar\ntrain = cedar.read_parquet({files!r}).batch(8)\n")
    target, saved = f"{tmp_path}/pipes.py:train", tmp_path / "state.json"
    p = cedar.read_parquet(files).map(fails_on_tens, "id").batch(8)
    with p.loader(on_error=cedar.Skip(), rank=0, world=1, executor="inline") as loader:
        next(iter(loader))
        state = loader.state_dict()
    saved.write_text(json.dumps([state]))
    assert main(["locate", target, str(saved), "0", "3"]) == 1
    assert "list of states" in capsys.readouterr().err
    (tmp_path / "pipes.py").write_text(
        f"import cedar\nfrom {__name__} import fails_on_tens\n"
        f"train = cedar.read_parquet({files!r}).map(fails_on_tens, 'id').batch(8)\n"
    )
    saved.write_text(json.dumps(state))
    assert main(["locate", target, str(saved), "0", "3"]) == 1
    assert "skipped rows" in capsys.readouterr().err
