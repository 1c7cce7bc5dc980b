"""The recommenders: losses are those of torch's own embeddings, without and with deduplication, and on two ranks."""

from __future__ import annotations

import json
import runpy
import socket
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
SAMPLES = {"dcn": "criteo_sample.csv", "din": "movielens_sample.csv"}
NAMES = {"dcn": "dcn_criteo.py", "din": "din_movielens.py"}
ON_RANKS = """
import json, runpy, sys
import torch.distributed as dist
dist.init_process_group("gloo")
example = runpy.run_path(sys.argv[1])
losses = example["train"](example["read"](sys.argv[2]), example["tables"](sharding=sys.argv[3]))
open(f"{sys.argv[4]}/{dist.get_rank()}", "w").write(json.dumps(losses))
dist.destroy_process_group()
"""


def plain(kind, example):
    """The same tables by torch alone."""
    import torch
    from torch import nn

    first = example["tables"]().state()

    class Bags(nn.Module):
        """Words of Criteo's rows, one each."""

        def __init__(self):
            super().__init__()
            self.bags = nn.ModuleDict(
                {word: nn.Embedding.from_pretrained(first[f"{word}.weight"], freeze=False) for word in example["WORDS"]}
            )

        def forward(self, batch):
            return torch.stack([bag(batch[word]) for word, bag in self.bags.items()], 1)

    class Films(nn.Module):
        """Rows of films, and of lists of films."""

        def __init__(self):
            super().__init__()
            self.films = nn.Embedding.from_pretrained(first["film.weight"], freeze=False, sparse=True)
            self.optimizer = torch.optim.SparseAdam(self.films.parameters(), lr=0.01)

        def rows(self, batch):
            return [self.films(batch["film"]), self.films(batch["liked"].values)]

        def step(self):
            self.optimizer.step()
            self.optimizer.zero_grad()

    return Bags() if kind == "dcn" else Films()


def far(one, other):
    return max(abs(a - b) for a, b in zip(one, other, strict=True))


@pytest.mark.heavy
@pytest.mark.parametrize("kind", NAMES)
def test_losses_are_those_of_torch(kind, shared_data):
    example, csv = runpy.run_path(str(EXAMPLES / NAMES[kind])), str(shared_data / SAMPLES[kind])
    train, read, tables = (example[name] for name in ("train", "read", "tables"))
    losses = train(read(csv), tables())
    assert far(losses, train(read(csv, dedup=False), tables())) < 1e-10
    assert far(losses, train(read(csv, dedup=False), plain(kind, example))) < 1e-10
    assert sum(losses[-5:]) < sum(losses[:5])


@pytest.mark.heavy
@pytest.mark.timeout(300)
@pytest.mark.parametrize("sharding", ["rows", "tables"])
def test_two_ranks_in_ddp_are_one(sharding, shared_data, tmp_path):
    example, csv = EXAMPLES / NAMES["dcn"], str(shared_data / SAMPLES["dcn"])
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    script = tmp_path / "on_ranks.py"
    script.write_text(ON_RANKS)
    command = [sys.executable, "-W", "ignore", "-m", "torch.distributed.run", "--nproc-per-node", "2"]
    command += ["--master-port", str(port), str(script), str(example), csv, sharding, str(tmp_path)]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=250)
    assert done.returncode == 0, done.stderr[-3000:]
    made = runpy.run_path(str(example))
    losses = made["train"](made["read"](csv), made["tables"]())
    for rank in "01":
        assert far(losses, json.loads((tmp_path / rank).read_text())) < 1e-10


@pytest.mark.heavy
@pytest.mark.parametrize("kind", NAMES)
def test_they_run_as_written_and_are_short(kind, shared_data):
    path = EXAMPLES / NAMES[kind]
    command = [sys.executable, str(path), str(shared_data / SAMPLES[kind])]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.startswith("loss ")
    text = path.read_text()
    assert len(text.splitlines()) <= 100
    assert not [line for line in text.splitlines() if "cedar." in line and "import" in line and "cedar.nn" not in line]
