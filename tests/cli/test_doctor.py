"""cedar doctor: what is installed, and what is missing or too old."""

from __future__ import annotations

from importlib import metadata

import pytest

from cedar.cli import doctor, main


def test_it_prints_versions_extras_and_limits(capsys):
    assert main(["doctor"]) == 0
    said = capsys.readouterr().out
    for word in ("cedar ", "Python ", "numpy ", "torch ", "cores", "memory", "open files", "GPU"):
        assert word in said


def test_what_is_missing_or_too_old_is_named(monkeypatch, capsys):
    versions = {"numpy": "1.26.4", "torch": "2.14.0+cpu", "fbgemm-gpu-cpu": "1.8.0"}

    def version(name):
        if name not in versions:
            raise metadata.PackageNotFoundError
        return versions[name]

    requires = [
        "numpy>=2.0", "nothing-like-it; extra == 's3'", 'torch==2.13.0; extra == "fbgemm"',
        'fbgemm-gpu-cpu==1.8.0; extra == "fbgemm"', 'pytest; extra == "dev"',
    ]  # fmt: skip
    monkeypatch.setattr(doctor.metadata, "version", version)
    monkeypatch.setattr(doctor.metadata, "requires", lambda _: requires)
    assert main(["doctor"]) == 0
    lines = [line.split(maxsplit=2) for line in capsys.readouterr().out.splitlines()]
    assert ["required", "incomplete", "numpy 1.26.4 (needs >=2.0)"] in lines
    assert ["s3", "missing", "nothing-like-it"] in lines
    assert ["fbgemm", "incomplete", "torch 2.14.0+cpu (needs ==2.13.0), fbgemm-gpu-cpu 1.8.0"] in lines
    assert not any(line[0] == "dev" for line in lines)


def test_bench_runs_the_workloads_of_a_checkout(capfd):
    assert main(["bench", "--list"]) == 0
    told = capfd.readouterr().out
    assert "clicklog" in told
    assert "dataloader" in told
    assert main(["bench", "--only", "nothing"]) == 2
    assert "there is no workload 'nothing'" in capfd.readouterr().err
    with pytest.raises(SystemExit):
        main(["bench", "--rounds", "0"])
    assert "must be an integer above 0" in capfd.readouterr().err


def test_bench_says_that_it_needs_a_checkout(tmp_path, monkeypatch, capsys):
    import cedar

    monkeypatch.setattr(cedar, "__file__", str(tmp_path / "cedar" / "__init__.py"))
    assert main(["bench"]) == 1
    told = capsys.readouterr().err
    assert "cedar bench needs a checkout" in told
    assert "make bench" in told


def test_a_small_shm_matters_only_without_memfd(monkeypatch):
    """Blocks do not pass through it where memfd_create exists."""
    monkeypatch.setattr(doctor, "_SMALL_SHM", 1 << 80)
    monkeypatch.setattr(doctor.os.path, "isdir", lambda path: True)
    monkeypatch.setattr(doctor, "_SHM", "/")
    monkeypatch.setattr(doctor.os, "memfd_create", print, raising=False)
    assert {fact[2] for fact in doctor._machine() if fact[0] == "/"} == {""}
    monkeypatch.delattr(doctor.os, "memfd_create")
    assert {fact[2][:23] for fact in doctor._machine() if fact[0] == "/"} == {"worker processes pass b"}
