"""Train torchtitan's Llama 3 as it is, in three stages of two workers each, while one of them is killed.

pip install --no-deps torchtitan spmd_types tyro einops typeguard docstring-parser
python examples/titan_pipeline.py RUN_FOLDER               # worker 3 gets SIGKILL at step 2
"""

from __future__ import annotations

import argparse
import copy
import dataclasses
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from cedar.trainers import AdamWOptions, PipelineOptions, ResilientPipeline, RunOptions, Workers

LENGTH, BATCH, STEPS, RATE, STAGES = 32, 8, 5, 1e-3, 3


def make_model() -> nn.Module:
    """The model that torchtitan debugs with: six layers of 256, a vocabulary of 2,048."""
    from torchtitan.models.common.attention import ScaledDotProductAttention
    from torchtitan.models.llama3 import llama3_configs

    config = llama3_configs["debugmodel"](attn_backend="flex")
    for layer in config.layers:
        layer.attention.rope = dataclasses.replace(layer.attention.rope, max_seq_len=LENGTH)
        layer.attention.inner_attention = ScaledDotProductAttention.Config()  # computes on a CPU, too
    torch.manual_seed(0)
    model: Any = config.build()
    model.init_states()
    return model  # type: ignore[no-any-return]


def cut(model: nn.Module) -> list[nn.Module]:
    """Its stages as torchtitan cuts them: copies of the model without the modules of others."""
    stages: list[nn.Module] = []
    for stage in range(STAGES):
        part: Any = copy.deepcopy(model)
        count = len(part.layers)
        for at in range(count):
            if not count * stage <= at * STAGES < count * (stage + 1):
                del part.layers[str(at)]
        if stage > 0:
            part.tok_embeddings = None
        if stage < STAGES - 1:
            part.norm = part.lm_head = None
        stages.append(part)
    return stages


def tokens(step: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows that count up from a random token, and the token that follows each."""
    draw = torch.Generator().manual_seed(step)
    rows = (torch.randint(0, 2048, (BATCH, 1), generator=draw) + torch.arange(LENGTH + 1)) % 2048
    return rows[:, :-1], rows[:, 1:]


def token_loss(scores: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
    return functional.cross_entropy(scores.flatten(0, 1), wanted.flatten())


def plain_losses() -> list[float]:
    """The same by torch alone: one process, one optimizer, whole batches."""
    model, losses = make_model(), []
    decayed, others = ([p for p in model.parameters() if (p.dim() > 1) is many] for many in (True, False))
    groups: list[dict[str, Any]] = [{"params": decayed}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=RATE, betas=(0.9, 0.95), weight_decay=0.01)
    for step in range(STEPS):
        rows, wanted = tokens(step)
        loss = token_loss(model(rows), wanted)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        losses.append(float(loss.detach()))
    return losses


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder")
    parser.add_argument("--chaos", default="kill=3@step2:5")
    chosen = parser.parse_args()
    pipeline = ResilientPipeline(
        cut(make_model()), token_loss, tokens, Workers(replicas=2), batch=BATCH,
        optimizer=AdamWOptions(rate=RATE, schedule="constant", clip=0.0), pipeline=PipelineOptions(micro_batches=4),
        run=RunOptions(folder=chosen.folder, steps=STEPS, save_every=0),
    )  # fmt: skip
    record = pipeline.train(chaos=chosen.chaos)
    losses = [loss for _, _, loss in record.steps]
    off = max(abs(one - two) for one, two in zip(losses, plain_losses(), strict=True))
    print(f"loss {losses[0]:.4f} to {losses[-1]:.4f}; at most {off:.1e} from torch in one process")
    print(f"{len(record.ended)} workers at the end; weights {sorted({e['digest'] for e in record.ended.values()})}")


if __name__ == "__main__":
    main()
