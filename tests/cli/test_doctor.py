"""cedar doctor: what is installed, and what is missing or too old."""

from importlib import metadata

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
