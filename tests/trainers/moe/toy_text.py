"""A small run of the whole trainer on text that is made on the spot."""

import random

from cedar.trainers.moe.options import DataOptions, ExpertOptions, ModelOptions, OptimizerOptions, Options, RunOptions

STEPS = 8
SETTINGS = """
[data]
paths = "{paths}"
length = 12
batch = 6
held_out = 5
[model]
width = 8
heads = 2
[experts]
experts = 5
slots = 4
hidden = 10
[run]
folder = "{folder}"
steps = 4
dtype = "float32"
device = "cpu"
"""


def write_text(path, lines=400, seed=0):
    """Lines of words whose frequencies fall off, as those of real text do."""
    numbers = random.Random(seed)
    words = ["".join(numbers.choices("etaoinshrdlu", k=numbers.randint(1, 7))) for _ in range(60)]
    weights = [1 / (at + 1) for at in range(60)]
    text = "\n".join(" ".join(numbers.choices(words, weights, k=numbers.randint(2, 9))) for _ in range(lines))
    path.write_text(text + "\n")
    return str(path)


def options(path, *, slots=4, data=None, experts=None, run=None, optimizer=None, model=None):
    """Settings of a run that takes milliseconds a step."""
    return Options(
        DataOptions(**({"paths": path, "length": 12, "batch": 6, "held_out": 5} | (data or {}))),
        ModelOptions(**({"layers": 2, "width": 8, "heads": 2} | (model or {}))),
        ExpertOptions(**({"experts": 5, "slots": slots, "hidden": 10, "top_k": 2} | (experts or {}))),
        OptimizerOptions(**({"rate": 5e-3, "warmup": 3, "clip": 0.5} | (optimizer or {}))),
        RunOptions(**({"dtype": "float64", "steps": 30, "folder": "", "device": "cpu"} | (run or {}))),
    )


def settings(text, folder, **more):
    """Those of a run that leaves checkpoints of both kinds and looks at what is held out."""
    changes = {"steps": STEPS, "folder": str(folder), "save_every": 3, "evaluate_every": 4, "sparse_window": 2} | more
    return options(text, slots=8, run=changes)
