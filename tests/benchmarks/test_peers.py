"""The benchmark against peers: its tables, figures, checks and pieces; what it runs is right, whatever it takes."""

import json
import sys

import numpy as np
import pytest

from benchmarks.peers import __main__ as command
from benchmarks.peers import check, environments, sizes, suite, watch
from benchmarks.peers.child import Answer
from benchmarks.peers.entry import Entry, Epochs, entries
from benchmarks.peers.figures import TARGETS, figures
from benchmarks.peers.rebatch import joined, rebatched, rows_of
from benchmarks.peers.rounds import Contestant, Job, Run, run
from benchmarks.peers.table import Line, against_dataloader, figures_markdown, line, markdown, matched
from benchmarks.peers.workload import Rows, Workload, plain, split_mix, taken, workloads


def made_run(entry="A", setting="doc", turn=0, rate=100.0, cpu=2.0, problem=""):
    answer = Answer(
        rows=int(rate), wall=1.0, cpu=cpu, first_epoch_rows=int(rate), first_epoch_wall=2.0, first_from_iter=0.1,
        first_from_start=0.5, problem=problem,
    )  # fmt: skip
    return Run("clicklog", entry, setting, turn, answer, 200.0, 100.0, None)


def made_line(entry, rate, setting="tuned", **more):
    options = {"rates": {0: rate, 1: rate}, "cpu_rates": {0: rate / 2, 1: rate / 2}, "proportional": 100.0} | more
    return Line(entry, setting, **options)


# ---- lines and tables ------------------------------------------------------------------------------------------------


def test_a_line_is_the_median_of_its_runs():
    found = line([made_run(turn=i, rate=rate) for i, rate in enumerate((100, 300, 200))], size=7.0)
    assert (found.rate, found.cpu_rate, found.first_epoch_rate) == (200, 100, 100)
    assert (found.first_from_iter, found.first_from_start, found.resident, found.proportional) == (0.1, 0.5, 200, 100)
    assert (found.problem, found.size) == ("", 7.0)


def test_a_failed_run_and_wrong_rows_are_told_in_the_line():
    failed = line([made_run(problem="took longer than 60 s")])
    assert failed.problem == "took longer than 60 s"
    assert failed.rates == {}
    wrong = line([made_run()], wrong="3 rows came more than once")
    assert wrong.problem == "wrong: 3 rows came more than once"
    text = markdown("t", "rows", [failed, wrong])
    assert "took longer than 60 s" in text
    assert "wrong: 3 rows" in text


def test_a_page_gets_the_tables_in_place_of_those_before(tmp_path):
    page = tmp_path / "page.md"
    page.write_text(f"above\n{suite.TABLE}old\n{suite.TABLE}below\n")
    settings = suite.Settings(1, 2, 60.0, True, None, tmp_path, None, True, page)
    for rate in (100.0, 400.0):
        suite.write({"text": workloads()["text"]}, {"text": [made_line("cedar", rate, "auto")]}, [], [], settings)
    text = page.read_text()
    assert text.startswith(f"above\n{suite.TABLE}")
    assert text.endswith(f"{suite.TABLE}below\n")
    assert "the quick form, rounds: 2" in text
    assert "**cedar, auto** | 400" in text
    assert "old" not in text.splitlines()
    assert "| 100" not in text


def test_ratios_are_taken_within_rounds():
    assert matched({0: 2.0, 1: 30.0}, {0: 1.0, 1: 10.0}) == [2.0, 3.0]
    assert matched({0: 2.0}, {1: 4.0}) == [0.5]


def test_the_table_puts_the_fastest_first_and_compares_with_dataloader_and_ours():
    lines = [made_line("DataLoader", 100.0, "2 workers"), made_line("cedar", 400.0, "auto"), made_line("B", 200.0)]
    rows = [row.split("|") for row in markdown("title", "rows", lines).splitlines() if row.startswith("| ")]
    assert [row[1].strip() for row in rows[1:]] == ["**cedar, auto**", "B, tuned", "DataLoader, 2 workers"]
    assert [row[3].strip() for row in rows[1:]] == ["4.00", "2.00", "1.00"]
    assert [row[4].strip() for row in rows[1:]] == ["1.00", "0.50", "0.25"]


def test_a_line_compares_ours_with_dataloader_first_of_all():
    lines = [made_line("DataLoader", 100.0, "2 workers"), made_line("DataLoader", 200.0, "tuned")]
    assert against_dataloader("t", "rows", lines) == "- t: cedar did not run"
    lines.append(made_line("cedar", 400.0, "auto"))
    said = "- t: cedar 400 rows/s; 4.00 times DataLoader with 2 workers (100), 2.00 times DataLoader tuned (200)"
    assert against_dataloader("t", "rows", lines) == said
    assert against_dataloader("t", "rows", lines[2:]) == "- t: cedar 400 rows/s; DataLoader did not run"


# ---- figures ---------------------------------------------------------------------------------------------------------


def by_name(lines, workload="clicklog"):
    return {figure.what.partition(": ")[2]: figure for figure in figures(workload, lines)}


def test_figures_compare_ours_with_the_best_peer_dataloader_and_the_limit():
    lines = [
        made_line("cedar", 230.0, "auto"), made_line("Grain", 200.0), made_line("DataLoader", 50.0, "2 workers"),
        made_line("LIMIT", 1000.0, "scan", limit=True), made_line("LIMIT", 9000.0, "ceiling", limit=True),
    ]  # fmt: skip
    found = by_name(lines)
    best = found["against best peer (Grain, tuned)"]
    assert (best.measured, best.target, best.met) == (pytest.approx(1.15), ">= 1.15", True)
    loader = found["against torch DataLoader, 2 workers"]
    assert (loader.measured, loader.target, loader.met) == (pytest.approx(4.6), ">= 3.8", True)
    scan = found["against scan alone"]
    assert (scan.measured, scan.target, scan.met) == (pytest.approx(0.23), ">= 0.57", False)
    assert "against ceiling alone" not in found
    text = figures_markdown(list(found.values()))
    assert "| pass |" in text
    assert "| miss |" in text


def test_a_peer_whose_rows_are_wrong_is_no_peer():
    wrong = made_line("Grain", 900.0, problem="wrong: 5 rows that should not be there")
    found = by_name([made_line("cedar", 230.0, "auto"), wrong, made_line("SPDL", 100.0)])
    assert "against best peer (SPDL, tuned)" in found


def test_without_a_sound_line_of_ours_there_are_no_figures():
    assert figures("clicklog", [made_line("cedar", 1.0, "auto", problem="wrong: x"), made_line("SPDL", 1.0)]) == []


def test_the_first_batch_is_compared_with_the_quickest_peer_that_has_processes():
    lines = [
        made_line("cedar", 10.0, "auto", first_from_iter=0.3),
        made_line("cedar", 10.0, "processes", first_from_iter=0.6),
        made_line("DataLoader", 10.0, "tuned", first_from_iter=0.5), made_line("tf.data", 10.0, first_from_iter=0.01),
    ]  # fmt: skip
    found = by_name(lines, "python_map")
    first = found["first batch, of DataLoader, tuned"]
    assert (first.measured, first.met) == (pytest.approx(0.6), True)
    beside = found['first batch, of DataLoader, tuned, executor="processes"']
    assert (beside.measured, beside.met) == (pytest.approx(1.2), None)
    assert not any("first batch" in what for what in by_name(lines[:1] + lines[2:], "audio"))


def test_every_workload_has_a_place_among_the_figures():
    assert set(workloads()) == set(TARGETS)
    assert all(limit[0] in workloads()[name].limits for name, t in TARGETS.items() if (limit := t.limit))


# ---- checks ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ids", "what"),
    [
        ([0, 1, 2, 3], ""),
        ([3, 2, 0, 1], ""),
        ([0, 1, 2], ""),  # two workers may each leave out a last short batch
        ([0, 1, 1, 2, 3], "1 rows came more than once"),
        ([0, 1, 2, 9], "1 rows that should not be there"),
        ([], "4 of 4 rows are missing"),
    ],
)
def test_identities_of_an_epoch(ids, what):
    assert check.wrong_rows(np.array(ids, np.int64), np.arange(4), 2) == what


def test_values_are_compared_row_by_row_within_the_tolerance():
    samples = {7: {"x": np.array([1.0, 2.0])}}
    reference = lambda row: {"x": np.array([1.0, 2.2])}
    assert check.wrong_values(samples, reference, 0.2) == ""
    assert check.wrong_values(samples, reference, 0.0).startswith("row 7, x: differs by 0.1 on average")
    assert "shape (2,), not (1,)" in check.wrong_values(samples, lambda row: {"x": np.zeros(1)}, 9.0)


def test_means_of_random_rows_must_agree():
    rng = np.random.default_rng(0)
    samples = {i: {"x": rng.normal(0, 1, 50)} for i in range(60)}
    assert check.wrong_means(samples, lambda row: {"x": np.random.default_rng(row).normal(0, 1, 50)}) == ""
    shifted = check.wrong_means(samples, lambda row: {"x": np.random.default_rng(row).normal(1, 1, 50)})
    assert "the mean of rows" in shifted
    wider = check.wrong_means(samples, lambda row: {"x": np.random.default_rng(row).normal(0, 3, 50)})
    assert "the deviation of rows" in wider


# ---- pieces ----------------------------------------------------------------------------------------------------------


def piece(lengths, start):
    offsets = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])
    return {"id": np.arange(start, start + len(lengths)), "c/values": np.arange(offsets[-1]), "c/offsets": offsets}


def rows_in(pieces):
    found = []
    for p in pieces:
        lists = [p["c/values"][a:b].tolist() for a, b in zip(p["c/offsets"][:-1], p["c/offsets"][1:], strict=True)]
        found += list(zip(p["id"].tolist(), lists, strict=True))
    return found


@pytest.mark.parametrize("size", [1, 2, 3, 5, 100])
def test_batches_hold_the_rows_of_the_pieces_in_order(size):
    pieces = [piece([2, 0, 1], 0), piece([], 3), piece([4], 3), piece([0, 0, 3, 1], 4)]
    batches = list(rebatched(pieces, size))
    assert rows_in(batches) == rows_in(pieces)
    assert all(rows_of(batch) == size for batch in batches[:-1])
    assert all(batch["c/offsets"][0] == 0 for batch in batches)
    assert rows_in([joined(pieces)]) == rows_in(pieces)


def test_draws_follow_from_the_row_and_are_uniform():
    numbers = np.stack([split_mix(i, 20) for i in range(500)])
    assert (numbers[7] == split_mix(7, 20)).all()
    assert ((numbers >= 0) & (numbers < 1)).all()
    assert abs(numbers.mean() - 0.5) < 0.02
    assert abs(np.corrcoef(numbers[:-1, 0], numbers[1:, 0])[0, 1]) < 0.15


def test_rows_of_any_form_of_column_can_be_taken():
    torch = pytest.importorskip("torch")
    import cedar

    jagged = {"c/values": np.arange(5), "c/offsets": np.array([0, 2, 5])}
    assert taken(jagged, "c", 1).tolist() == [2, 3, 4]
    assert taken({"c": cedar.JaggedTensor(np.arange(5), np.array([0, 2, 5]))}, "c", 0).tolist() == [0, 1]
    assert taken({"c": torch.arange(3)}, "c", 2).tolist() == 2
    assert plain(torch.ones(2)).tolist() == [1, 1]


def test_processes_of_a_run_are_found_by_their_mark_and_ended():
    import os
    import subprocess

    mark = "test-of-the-mark"
    started_by = "import subprocess, sys; subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'])"
    code = started_by + "; print(flush=True)"
    env = os.environ | {watch.VARIABLE: mark}
    with subprocess.Popen(
        [sys.executable, "-c", code], env=env, stdout=subprocess.PIPE, start_new_session=True
    ) as started:
        started.stdout.readline()
        assert watch.members(mark)  # the child at least, which the parent has left
        assert watch.cpu_seconds(mark) >= 0
        with watch.Memory(mark, every=0.01) as memory:
            while not memory.resident:
                pass
        watch.end(mark)
        started.wait(60)
    assert memory.resident > 1
    assert watch.members(mark) == []


def test_an_environment_is_what_its_pins_say():
    known = entries()
    for name, entry in known.items():
        if entry.environment:
            pinned = environments.requirements(entry).splitlines()
            names = {environments.name_of(text).lower() for text in pinned}
            wanted = {environments.name_of(text).lower() for text in (*entry.requirements, "numpy", "simplejpeg")}
            assert wanted <= names, name
            assert all("==" in text and "+" not in text for text in pinned), name


def test_an_environment_that_cannot_be_made_is_told(tmp_path, monkeypatch):
    entry = Entry("A", "a", "broken", ("no==1",), (), lambda w: ("x",), lambda w, k, s: [])
    monkeypatch.setattr(environments.sys, "executable", "/bin/false")
    found = environments.made(entry, tmp_path)
    assert found.python is None
    assert "could not be installed" in found.problem


def test_sizes_follow_what_is_required():
    found = sizes.closure(["pytest"])
    assert {"pytest", "pluggy", "packaging"} <= set(found)
    assert "attrs" not in found  # of an extra
    assert sizes.size(found["pluggy"]) > 10_000


# ---- runs ------------------------------------------------------------------------------------------------------------


class Doubled(Rows):
    batch = 4
    compared = ("x",)

    def row(self, i):
        return {"id": np.int64(i), "x": np.int64(2 * i)}


def test_epochs_can_be_started_again_and_rows_are_batched():
    work = Doubled("", 10)
    assert [list(b) for b in work.batches()] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    assert work.many([3, 4])["x"].tolist() == [6, 8]
    epochs = Epochs(lambda: iter([1, 2]))
    assert (list(epochs), list(epochs)) == ([1, 2], [1, 2])


def test_a_run_that_fails_or_hangs_is_a_line_not_an_error(tmp_path, capsys):
    entry = entries()["limits"]
    job = Job("python_map", str(tmp_path / "nothing"), 10, 1, 60.0)
    found = run(job, Contestant("limits", entry, "loop", sys.executable), 0, tmp_path)
    assert "FileNotFoundError" in found.answer.problem
    late = run(
        Job("python_map", str(tmp_path), 10, 1, 0.05), Contestant("limits", entry, "loop", sys.executable), 0, tmp_path
    )
    assert late.answer.problem == "took longer than 0.05 s"


@pytest.mark.heavy
def test_a_tiny_round_with_ours_and_torch_is_right_and_leaves_its_files(tmp_path, capsys):
    pytest.importorskip("torch")
    pytest.importorskip("matplotlib")
    arguments = ["--tiny", "--here", "--only", "clicklog", "--peers", "cedar,dataloader", "--out", str(tmp_path)]
    command.main(arguments)
    data = json.loads((tmp_path / "peers.json").read_text())
    lines = {(x["entry"], x["setting"]): x for x in data["lines"]["clicklog"]}
    assert set(lines) == {("cedar", "auto"), ("DataLoader", "2 workers"), ("DataLoader", "tuned")}
    assert [x["problem"] for x in lines.values()] == [""] * len(lines)
    assert all(x["rates"] for x in lines.values())
    assert {run["answer"]["rows"] for run in data["runs"]} == {data["runs"][0]["answer"]["rows"]}
    assert "click log" in (tmp_path / "peers.md").read_text()
    assert (tmp_path / "peers.png").stat().st_size > 1000


@pytest.mark.parametrize("setting", ["own files, batches", "own files, tuned"])
def test_what_a_peer_reads_is_converted_once_and_holds_the_same_rows(setting, tmp_path):
    pytest.importorskip("lance", reason="the extra lance is not installed")
    pytest.importorskip("torch")
    workload, entry = workloads()["clicklog"], entries()["lance"]
    workload.prepare(tmp_path, 9000, None)
    work = workload.work(str(tmp_path), 9000)
    for _ in range(2):
        entry.convert(work)
    assert len(list((tmp_path / "log.lance" / "_versions").glob("*.manifest"))) == 1
    batches = list(entry.run(workload, work, setting))
    ids = np.concatenate([work.ids(batch, 0) for batch in batches])
    assert check.wrong_rows(ids, work.expected(), 1) == ""
    some = {int(ids[at]): work.sample(batches[0], at) for at in (0, 7, 4095)}
    assert check.wrong_values(some, lambda row: work.sample_of(work.reference(row)), workload.tolerance) == ""


@pytest.mark.parametrize(
    ("option", "said"), [("--only", "there is no workload 'x'"), ("--peers", "there is no peer 'x'")]
)
def test_unknown_names_are_refused(option, said, capsys):
    assert command.main([option, "x"]) == 2
    assert said in capsys.readouterr().err


def test_workloads_and_entries_are_whole():
    for workload in workloads().values():
        assert isinstance(workload, Workload)
        assert len(workload.rows) == 3
        settings = {name: entry.settings(workload) for name, entry in entries().items()}
        assert settings["cedar"][0] == "auto"
        assert {"ceiling", "loop"} <= set(settings["limits"])
        assert len([name for name, found in settings.items() if found]) >= 9
