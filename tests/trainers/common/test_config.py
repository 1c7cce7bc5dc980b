"""Example configurations are read by the trainers they are for; what is wrong in one is told by file and key."""

from importlib import import_module
from pathlib import Path

import numpy as np
import pytest

from cedar.core.errors import CedarError
from cedar.trainers.common import config

EXAMPLES = sorted((Path(__file__).parents[3] / "examples").glob("*.toml"))


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_is_a_configuration(path):
    options = import_module(f"cedar.trainers.{path.stem.partition('_')[0]}.options").Options
    read = config.load(str(path), options, ["run.steps=3"])
    assert read.run.steps == 3
    with pytest.raises(CedarError, match=r"there is no setting 'run\.stpes'.*\n.*did you mean 'steps'"):
        config.load(str(path), options, ["run.stpes=3"])
    with pytest.raises(CedarError, match=r"run: keep is 0: give 1 or more"):
        config.load(str(path), options, ["run.keep=0"])


def test_there_is_an_example_of_each_trainer():
    assert {path.stem.partition("_")[0] for path in EXAMPLES} == {"dlrm", "moe", "resilient"}


def test_a_file_that_is_not_text_is_refused(tmp_path):
    path = tmp_path / "latin.toml"
    path.write_bytes('[run]\nfolder = "\u00e9"\n'.encode("latin-1"))
    options = import_module("cedar.trainers.moe.options").Options
    with pytest.raises(CedarError, match=r"latin\.toml is not valid TOML"):
        config.load(str(path), options, [])


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        (
            "dlrm.options.FeatureOptions",
            {"column": "a", "rows": 3, "pooling": "max"},
            "pooling is 'max': give one of sum",
        ),
        ("dlrm.options.ModelOptions", {"interaction": "cat"}, "interaction is 'cat': give one of dot, dcn"),
        ("dlrm.options.OptimizerOptions", {"rule": "lion"}, "rule is 'lion': give one of adagrad, sgd, adam"),
        ("dlrm.options.TableOptions", {"sharding": "row"}, "sharding is 'row': give one of auto, tables, rows"),
        ("moe.options.ExpertOptions", {"drop": "prob"}, "drop is 'prob': give one of position, probability"),
        ("moe.options.OptimizerOptions", {"gradients": "fp8"}, "gradients is 'fp8': give one of float32, bfloat16"),
        ("common.config.AdamWOptions", {"schedule": "const"}, "schedule is 'const': give one of cosine, constant"),
        ("resilient.options.PipelineOptions", {"reduction": "Exact"}, "reduction is 'Exact': give one of exact, fast"),
        ("resilient.options.RunOptions", {"sparse_window": "Auto"}, "sparse_window is 'Auto': give int or one of auto"),
    ],
)
def test_an_unknown_word_is_refused_outside_of_files_too(name, changes, message):
    """Feature(pooling="max") summed in silence."""
    module, _, cls = name.rpartition(".")
    with pytest.raises(ValueError) as failed:
        getattr(import_module(f"cedar.trainers.{module}"), cls)(**changes)
    assert message in str(failed.value)


@pytest.mark.parametrize("kind", [int, np.int64])
def test_numbers_of_numpy_are_as_good_as_others(kind):
    """A number of steps was refused, as it was not the word that the option takes too."""
    options = import_module("cedar.trainers.resilient.options")
    assert options.RunOptions(sparse_window=kind(4)).sparse_window == 4
    with pytest.raises(ValueError, match="sparse_window is True: give int or one of auto"):
        options.RunOptions(sparse_window=True)
