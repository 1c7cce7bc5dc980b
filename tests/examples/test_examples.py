"""Every example runs on real input and says something true about it."""

import re
import runpy
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.heavy

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


@pytest.fixture
def run(monkeypatch, capsys):
    """Run an example as `python examples/<name> <argument>` does; returns what it printed."""

    def run_example(name, *arguments):
        monkeypatch.setattr(sys, "argv", [name, *map(str, arguments)])
        runpy.run_path(str(EXAMPLES / name), run_name="__main__")
        return capsys.readouterr().out

    return run_example


def test_criteo(run, shared_data):
    said = run("criteo.py", shared_data / "criteo_sample.csv")
    assert "200 rows, 24.5% clicked" in said
    assert re.search(r"\d+ rows have no I1", said)


def test_movielens(run, shared_data):
    said = run("movielens.py", shared_data / "movielens_sample.csv")
    assert re.search(r"^Drama +\d+ +\d\.\d\d$", said, re.MULTILINE)


def test_shakespeare(run, shared_data):
    said = run("shakespeare.py", shared_data / "tinyshakespeare.txt")
    assert "the first sequence:" in said
    assert re.search(r"[\d,]+ sequences of 128 bytes", said)


def test_photos(run, shared_data):
    said = run("photos.py", shared_data / "photos")
    assert said.count("batch (2, 3, 96, 96)") == 2
    assert re.search(r"rocket.jpg +red", said)


def test_audio(run, shared_data):
    said = run("audio.py", shared_data / "audio")
    assert said.count("batch (3, ") == 3
    assert re.search(r"Front_Center.wav +1\.4\d s", said)


def test_dataset(run, shared_data):
    said = run("dataset.py", shared_data / "movielens_sample.csv")
    assert "13 batches; stopped after 5" in said
    assert said.endswith("the same batches as without a stop: True\n")
