"""torch.distributed.checkpoint on two ranks: train, stop in the middle of an epoch, resume, and score every row once.

A filter hides how many rows there are, so each rank's place is its own: stateful() saves all of them.

torchrun --nproc-per-node 2 examples/checkpoint_two_ranks.py FOLDER
"""

import sys
from itertools import islice

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import cedar

ROWS = cedar.from_items([{"id": i, "x": [i % 7, 1.0], "y": i % 2} for i in range(9000)]).map(torch.tensor, "x")
ODD = ROWS.filter(lambda i: i % 2 == 1, "id")


def train(folder: str, resume: bool) -> tuple[nn.Module, list[int]]:
    """One epoch, or the first seven steps of it."""
    loader = ODD.shuffle(seed=1).batch(16, last="drop").loader(format="torch")
    model = DistributedDataParallel(nn.Linear(2, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    if resume:
        dcp.load({"model": model, "loader": loader.stateful()}, checkpoint_id=folder)  # type: ignore[attr-defined]
    seen: list[int] = []
    for batch in loader if resume else islice(loader, 7):
        loss = nn.functional.cross_entropy(model(batch["x"].float()), batch["y"].long())
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad()
        seen += batch["id"].tolist()
    if not resume:
        dcp.save({"model": model, "loader": loader.stateful()}, checkpoint_id=folder)  # type: ignore[attr-defined]
    return model, seen


def gathered(values: list[int]) -> list[int]:
    """Those of all ranks."""
    ranks: list[list[int]] = [[] for _ in range(dist.get_world_size())]
    dist.all_gather_object(ranks, values)
    return [value for rank in ranks for value in rank]


def run(folder: str) -> None:
    _, first = train(folder, resume=False)
    model, rest = train(folder, resume=True)
    scored: list[int] = []
    for batch in ODD.batch(16, last="pad").loader(format="torch"):
        model(batch["x"].float())
        scored += batch["id"][batch["valid"]].tolist()  # the rest fills up the last steps
    trained, scored = gathered(first + rest), gathered(scored)
    if dist.get_rank() == 0:
        print("trained:", len(trained), "rows,", len(set(trained)), "different")
        print("every row scored once:", sorted(scored) == list(range(1, 9000, 2)))


def main(folder: str) -> None:
    dist.init_process_group("gloo")
    run(folder)  # its own function: the models are gone before their process group is
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1])
