import json

from benchmarks import dedup, harness


def test_the_short_form_measures_and_writes(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(harness, "OUT", tmp_path)
    assert dedup.main(["--quick", "--only", "factors", "sliding"]) == 0  # both are counts: they depend on no clock
    rows = json.loads((tmp_path / "dedup_part.json").read_text())
    assert len(rows) == 7
    assert all(row["met"] for row in rows)
    assert "predicted 12.3, achieved 12.3" in rows[4]["note"]
    assert "deduplication (quick)" in capsys.readouterr().out


def test_pipelines_that_are_compared_give_the_same_rows():
    import cedar

    names = ["f0", "f1"]
    p = cedar.from_arrow(dedup.log(2 * dedup.BATCH, 16, 0.95, 2, 5))
    for work in (dedup._hashed, dedup._looked_up):
        with work(p, names).loader() as plain, work(p.dedup([names]), names).loader() as once:
            for one, other in zip(once, plain, strict=True):
                assert one["f0"].expand() == {name: other[name] for name in names}
