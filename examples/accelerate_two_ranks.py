"""Accelerate on two ranks: train, stop in the middle of an epoch, resume, and score every row once.

torchrun --nproc-per-node 2 examples/accelerate_two_ranks.py FOLDER
"""

import sys

import torch
from accelerate import Accelerator
from accelerate.utils import gather_object
from torch import nn

import cedar

ROWS = cedar.from_items([{"id": i, "x": [i % 7, 1.0], "y": i % 2} for i in range(300)]).map(torch.tensor, "x")


def train(accelerator: Accelerator, folder: str, resume: bool) -> tuple[nn.Module, list[int]]:
    """One epoch, or the first seven steps of it."""
    loader = ROWS.shuffle(seed=1).batch(8, last="drop").loader(device=accelerator.device)
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    accelerator.register_for_checkpointing(loader)
    if resume:
        accelerator.load_state(folder)  # rank 0 saved its loader's state: all ranks continue from it
    seen: list[int] = []
    for step, batch in enumerate(loader, 1):
        loss = nn.functional.cross_entropy(model(batch["x"].float()), batch["y"].long())
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        seen += batch["id"].tolist()
        if step == 7 and not resume:
            accelerator.save_state(folder)
            break
    return model, seen


def main(folder: str) -> None:
    accelerator = Accelerator(cpu=True)
    _, first = train(accelerator, folder, resume=False)
    accelerator = Accelerator(cpu=True)  # as a new job would
    model, rest = train(accelerator, folder, resume=True)
    scored: list[int] = []
    for batch in ROWS.take(101).batch(8, last="pad").loader(device=accelerator.device):
        model(batch["x"].float())
        scored += batch["id"][batch["valid"]].tolist()  # the rest fills up the last step
    trained, scored = gather_object(first + rest), gather_object(scored)
    if accelerator.is_main_process:
        print("trained:", len(trained), "rows,", len(set(trained)), "different")
        print("every row scored once:", sorted(scored) == list(range(101)))
    accelerator.end_training()


if __name__ == "__main__":
    main(sys.argv[1])
