"""Train a vision transformer of your own in three stages of two workers each, while one of them is killed.

python examples/vit_pipeline.py RUN_FOLDER               # worker 3 gets SIGKILL at step 4
python examples/vit_pipeline.py RUN_FOLDER --chaos ""    # nothing dies: the same losses, digit for digit
"""

from __future__ import annotations

import argparse
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from cedar.trainers import AdamWOptions, PipelineOptions, ResilientPipeline, RunOptions, Workers

WIDTH, CLASSES, BATCH, STEPS, RATE = 32, 4, 16, 12, 3e-3


class Patches(nn.Module):
    """Images ``[rows, 1, 16, 16]`` to 16 patches, each a vector that knows its place."""

    def __init__(self) -> None:
        super().__init__()
        self.cut = nn.Conv2d(1, WIDTH, 4, stride=4)
        self.places = nn.Parameter(torch.randn(16, WIDTH) * 0.02)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.cut(images).flatten(2).transpose(1, 2) + self.places  # type: ignore[no-any-return]


class Head(nn.Module):
    """The mean over patches to a score for each class."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.score = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, CLASSES)

    def forward(self, patches: torch.Tensor) -> torch.Tensor:
        return self.score(self.norm(patches).mean(1))  # type: ignore[no-any-return]


def make_stages(dtype: torch.dtype) -> list[nn.Module]:
    """Three stages; the blocks are torch's."""
    torch.manual_seed(0)
    blocks = [nn.TransformerEncoderLayer(WIDTH, 4, 64, 0.0, batch_first=True, norm_first=True) for _ in range(3)]
    stages = (nn.Sequential(Patches(), blocks[0]), nn.Sequential(blocks[1]), nn.Sequential(blocks[2], Head()))
    return [stage.to(dtype) for stage in stages]


def images(step: int) -> tuple[torch.Tensor, torch.Tensor]:
    """A batch: stripes of four kinds in noise. A function of the step, so that any worker can read it again."""
    draw = torch.Generator().manual_seed(step)
    labels = torch.randint(0, CLASSES, (BATCH,), generator=draw)
    wave = torch.sin(torch.arange(16) * 0.5)[None] * (1 + labels[:, None])
    noise = torch.randn(BATCH, 1, 16, 16, generator=draw)
    return noise + torch.where(labels[:, None, None] % 2 == 0, wave[:, :, None], wave[:, None, :])[:, None], labels


def plain_losses(dtype: torch.dtype) -> list[float]:
    """The same by torch alone: one process, one optimizer, whole batches."""
    model, losses = nn.Sequential(*make_stages(dtype)), []
    decayed, others = ([p for p in model.parameters() if (p.dim() > 1) is many] for many in (True, False))
    groups: list[dict[str, Any]] = [{"params": decayed}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=RATE, betas=(0.9, 0.95), weight_decay=0.01)
    for step in range(STEPS):
        x, labels = images(step)
        loss = functional.cross_entropy(model(x.to(dtype)), labels)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        losses.append(float(loss.detach()))
    return losses


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder")
    parser.add_argument("--chaos", default="kill=3@step4:5")
    parser.add_argument("--dtype", default="float32", choices=["float32", "float64"])
    chosen = parser.parse_args()
    dtype = getattr(torch, chosen.dtype)
    pipeline = ResilientPipeline(
        make_stages(dtype), functional.cross_entropy, images, Workers(replicas=2), batch=BATCH,
        optimizer=AdamWOptions(rate=RATE, schedule="constant", clip=0.0), pipeline=PipelineOptions(micro_batches=4),
        run=RunOptions(folder=chosen.folder, steps=STEPS, save_every=0, dtype=chosen.dtype),
    )  # fmt: skip
    record = pipeline.train(chaos=chosen.chaos)
    losses = [loss for _, _, loss in record.steps]
    off = max(abs(one - two) for one, two in zip(losses, plain_losses(dtype), strict=True))
    print(f"loss {losses[0]:.4f} to {losses[-1]:.4f}; at most {off:.1e} from torch in one process")
    print(f"{len(record.ended)} workers at the end; weights {sorted({e['digest'] for e in record.ended.values()})}")


if __name__ == "__main__":
    main()
