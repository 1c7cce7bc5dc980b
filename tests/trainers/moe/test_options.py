"""Settings: those of the example, and a line for each that is wrong."""

import os

import pytest

from cedar.cli import main
from cedar.trainers.common import config
from cedar.trainers.moe.options import DataOptions, Options, RunOptions, settings
from tests.trainers.moe.toy_text import SETTINGS, write_text


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    return write_text(tmp_path_factory.mktemp("text") / "text.txt", lines=80)


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("experts.policy=sometimes", "'experts.policy' is 'sometimes'"),
        ("experts.slot=3", "did you mean 'slots'?"),
        ("experts.top_k=9", "top_k is 9, but there are only 5 experts"),
        ("experts.rates=[1.0]", "rates has 1 values for 5 experts"),
        ("experts.every=0", "every is 0: give 1 or more"),
        ("experts.capacity=-1", "capacity is -1.0: give a finite number of 0 or more"),
        ("model.heads=3", "width 8 is not divisible by heads 3"),
        ("model.dropout=1.0", "dropout is 1.0"),
        ("data.accumulate=7", "batch 6 has fewer rows than accumulate 7"),
        ("optimizer.betas=[0.9]", "betas are (0.9,)"),
        ("run.steps=0", "steps is 0: give 1 or more"),
        ("optimizer.clip=-1", "clip is -1.0: give a finite number of 0 or more"),
        ("optimizer.betas=0.9", "'optimizer.betas' is 0.9, not a list"),
        ("experts.capacity=inf", "capacity is inf: give a finite number of 0 or more"),
        ("experts.capacity=nan", "capacity is nan: give a finite number of 0 or more"),
        ("experts.decays=[1, 1, 1, -1, 1]", "decays is (1.0, 1.0, 1.0, -1.0, 1.0): give a finite number of 0 or more"),
        ("data.held_out=-1", "held_out is -1: give a finite number of 0 or more"),
        ("data.paths=3", "'data.paths' is 3"),
        ("data.paths=[1]", "'data.paths[0]' is 1, not str"),
        ("data.paths=[]", "paths is (): give a path"),
        ("run.device=gpu", "run.device is 'gpu'"),
        ("run.device=meta", "run.device is 'meta'"),
        ("run.threads=-1", "threads is -1: give a finite number of 0 or more"),
        ("run.folder=", "run.folder is '', which cannot be created"),
        ("run.folder=/dev/null", "run.folder is '/dev/null', which cannot be created"),
        ("experts.slots=4", "5 experts do not fit into 4 slots"),
        ("run.sparse_window=1000", "over a sparse window of 1000 steps"),
        ("data.paths=nowhere.txt", "nowhere.txt"),
    ],
)
def test_wrong_settings_are_told_in_a_line(text, tmp_path, capsys, change, said):
    (tmp_path / "moe.toml").write_text(
        SETTINGS.format(paths=text, folder=tmp_path / "run").replace("slots = 4", "slots = 5")
    )
    assert main(["train", "moe", str(tmp_path / "moe.toml"), change]) == 1
    told = capsys.readouterr().err
    assert said in told
    assert "Traceback" not in told


def test_the_example_is_a_configuration():
    path = os.path.join(os.path.dirname(__file__), "..", "..", "..", "examples", "moe.toml")
    assert config.load(path, Options).experts.slots == 64


def test_the_address_of_a_live_page_is_no_setting_of_the_training():
    """Ranks had to have the same, and a sparse checkpoint could not be recovered with another."""
    served = Options(DataOptions("text.txt"), run=RunOptions(serve="127.0.0.1:0"))
    assert settings(served) == settings(Options(DataOptions("text.txt")))
