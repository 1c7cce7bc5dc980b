"""Train a Llama-shaped model, whose head is its table of tokens, in three stages of two workers, while one is killed.

python examples/llama_pipeline.py RUN_FOLDER               # worker 2 gets SIGKILL at step 3
python examples/llama_pipeline.py RUN_FOLDER ""            # nothing dies: the same losses, digit for digit
"""

from __future__ import annotations

import sys
from functools import partial

import torch
from torch import nn
from torch.nn import functional

from cedar.trainers import AdamWOptions, PipelineOptions, ResilientPipeline, RunOptions, Workers

VOCABULARY, WIDTH, HEADS, GROUPS, LENGTH, BATCH, STEPS, RATE = 64, 32, 4, 2, 16, 8, 8, 3e-3
linear = partial(nn.Linear, bias=False)


class Attention(nn.Module):
    # causal, with rotary positions; two heads of queries share a head of keys and values
    def __init__(self) -> None:
        super().__init__()
        self.size = WIDTH // HEADS
        self.query, self.out = linear(WIDTH, WIDTH), linear(WIDTH, WIDTH)
        self.key, self.value = linear(WIDTH, GROUPS * self.size), linear(WIDTH, GROUPS * self.size)
        angles = torch.outer(torch.arange(LENGTH), 1e4 ** -(torch.arange(0, self.size, 2) / self.size))
        self.register_buffer("turns", torch.polar(torch.ones_like(angles), angles), persistent=False)

    def turned(self, x: torch.Tensor) -> torch.Tensor:
        """``[rows, length, heads * size]`` to heads that know their place, ``[rows, heads, length, size]``."""
        pairs = torch.view_as_complex(x.view(*x.shape[:-1], -1, self.size // 2, 2))
        return torch.view_as_real(pairs * self.turns[None, :, None].to(pairs.dtype)).flatten(-2).transpose(1, 2)  # type: ignore[index]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        value = self.value(x).unflatten(-1, (GROUPS, self.size)).transpose(1, 2)
        query, key = self.turned(self.query(x)), self.turned(self.key(x))
        seen = functional.scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=True)
        return self.out(seen.transpose(1, 2).flatten(-2))  # type: ignore[no-any-return]


class Block(nn.Module):
    # attention and SwiGLU, each behind a norm and added to its input
    def __init__(self) -> None:
        super().__init__()
        self.attention, self.norms = Attention(), nn.ModuleList([nn.RMSNorm(WIDTH), nn.RMSNorm(WIDTH)])
        self.gate, self.up, self.down = linear(WIDTH, 2 * WIDTH), linear(WIDTH, 2 * WIDTH), linear(2 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.norms[0](x))
        inner = self.norms[1](x)
        return x + self.down(functional.silu(self.gate(inner)) * self.up(inner))  # type: ignore[no-any-return]


def make_stages() -> list[nn.Module]:
    """The head's weight is the table's: one object in two stages, which is trained as one."""
    torch.manual_seed(0)
    table, head = nn.Embedding(VOCABULARY, WIDTH), linear(WIDTH, VOCABULARY)
    head.weight = nn.init.normal_(table.weight, std=0.1)
    stages = [nn.Sequential(table, Block()), Block(), nn.Sequential(Block(), nn.RMSNorm(WIDTH), head)]
    return [stage.double() for stage in stages]


def tokens(step: int, rows: range) -> tuple[torch.Tensor, torch.Tensor]:
    """These rows of a step's batch, and for each token the one after it: any worker can read them, and again."""
    first = torch.tensor([(1009 * step + 31 * row) % VOCABULARY for row in rows])
    counted = (first[:, None] + torch.arange(LENGTH + 1) * (1 + first[:, None] % 3)) % VOCABULARY
    return counted[:, :-1], counted[:, 1:]


def token_loss(scores: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
    return functional.cross_entropy(scores.transpose(1, 2), wanted)


def main() -> None:
    folder, *chaos = sys.argv[1:]
    pipeline = ResilientPipeline(
        make_stages(), token_loss, tokens, Workers(replicas=2), batch=BATCH,
        pipeline=PipelineOptions(micro_batches=2),
        optimizer=AdamWOptions(rate=RATE, schedule="constant", clip=0.0, decay=0.0),
        run=RunOptions(folder=folder, steps=STEPS, save_every=0, dtype="float64"),
    )  # fmt: skip
    record = pipeline.train(chaos=chaos[0] if chaos else "kill=2@step3:4")
    model = nn.Sequential(*make_stages())  # the same by torch alone: one process, one optimizer, whole batches
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, betas=(0.9, 0.95), weight_decay=0.0)
    off = 0.0
    for step, _, loss in record.steps:
        x, wanted = tokens(step, range(BATCH))
        off = max(off, abs(loss - float((plain := token_loss(model(x), wanted)).detach())))
        optimizer.zero_grad()
        plain.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    print(f"loss {record.steps[0][2]:.4f} to {loss:.4f}; at most {off:.1e} from torch in one process")
    print(f"{len(record.ended)} workers at the end; weights {sorted({e['digest'] for e in record.ended.values()})}")


if __name__ == "__main__":
    main()
