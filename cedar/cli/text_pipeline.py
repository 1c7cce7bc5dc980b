"""The model pipeline of ``cedar train resilient``: a GPT-style model on byte-level text."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from functools import partial
from typing import Any

import cedar
from cedar.core.errors import CedarError
from cedar.trainers.common.data import VOCABULARY, token_rows
from cedar.trainers.resilient.model import Stage, Transformer, token_loss
from cedar.trainers.resilient.options import DataOptions, Options
from cedar.trainers.resilient.pipeline import ResilientPipeline, Workers


def text_pipeline(options: Options, stages: int, group: Workers) -> ResilientPipeline:
    """Build the pipeline of a configuration."""
    chosen, seed = options.model, options.run.seed
    if not 1 <= stages <= chosen.layers:
        raise CedarError(
            f"{chosen.layers} layers cannot be split into {stages} stages",
            fix="use at most one stage per layer, and at least one stage",
        )
    model = Transformer(
        VOCABULARY, options.data.length, chosen.layers, chosen.width, chosen.heads, chosen.dropout, chosen.tied
    )
    return ResilientPipeline(
        [partial(Stage, model, stage, stages, seed) for stage in range(stages)], token_loss,
        partial(token_pipeline, options.data, seed), group, columns=next_token, batch=options.data.batch,
        optimizer=options.optimizer, tied="tokens.weight" if chosen.tied else None, pipeline=options.pipeline,
        run=options.run, named=True, about=asdict(options),
    )  # fmt: skip


def token_pipeline(options: DataOptions, seed: int) -> cedar.Pipeline:
    """Return rows of tokens, shuffled within windows of the text."""
    return token_rows(options.paths, options.length + 1).shuffle(seed=seed)


def next_token(batch: Mapping[str, Any]) -> tuple[Any, Any]:
    """Return (inputs, targets): all tokens of each row but the last, and for each of these the next token."""
    tokens = batch["tokens"].long()
    return tokens[:, :-1], tokens[:, 1:]
