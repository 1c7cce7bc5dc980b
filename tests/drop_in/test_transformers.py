"""Hugging Face's Trainer, by the recipe of docs/torch.md: epochs, and a resume from any checkpoint."""

from __future__ import annotations

import re
import warnings
from pathlib import Path
from typing import Any

import pytest

import cedar

torch: Any = pytest.importorskip("torch")
Module: Any = torch.nn.Module
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    pytest.importorskip("accelerate", reason="accelerate is not installed")
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")

pytestmark = pytest.mark.filterwarnings("ignore")

PAGE = Path(__file__).resolve().parents[2] / "docs" / "torch.md"


def recipe() -> Any:
    """The Trainer of the page."""
    code = re.search(r"^```py\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    assert code is not None
    names: dict[str, Any] = {}
    exec(compile(code.group(1), str(PAGE), "exec"), names)
    return names["Trainer"]


class Model(Module):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.line = torch.nn.Linear(1, 1)
        self.seen: list[list[int]] = []

    def forward(self, x: Any) -> dict[str, Any]:
        self.seen.append(x.int().tolist())
        return {"loss": self.line(x[:, None].float() / 32).mean()}


def make_loader() -> cedar.Loader:
    return cedar.from_items([{"x": float(i)} for i in range(32)]).shuffle(seed=5).batch(4).loader(format="torch")


def job(folder: Path) -> tuple[Any, Model]:
    torch.manual_seed(0)
    options = transformers.TrainingArguments(
        str(folder), num_train_epochs=3, save_steps=2, gradient_accumulation_steps=2, report_to=[], use_cpu=True,
        disable_tqdm=True, remove_unused_columns=False, ignore_data_skip=True, logging_strategy="no", max_grad_norm=0.0,
    )  # fmt: skip
    model = Model()
    return recipe()(model=model, args=options, loader=make_loader()), model


@pytest.mark.heavy
def test_three_epochs_and_a_resume_within_and_after_an_epoch(tmp_path: Path) -> None:
    trainer, whole = job(tmp_path)
    trainer.train()
    plain = make_loader()
    assert whole.seen == [batch["x"].int().tolist() for _ in range(3) for batch in plain]
    trainer, again = job(tmp_path)
    trainer.train(resume_from_checkpoint=True)  # from the last one, after which there is nothing to do
    assert again.seen == []
    for step in (2, 4):  # optimizer steps, of two batches each; an epoch has four
        trainer, again = job(tmp_path / "again")
        trainer.train(resume_from_checkpoint=str(tmp_path / f"checkpoint-{step}"))
        assert again.seen == whole.seen[2 * step :], step
        assert torch.equal(again.line.weight, whole.line.weight)
