"""Train on text with a Hugging Face tokenizer, and let a collator pad each batch and mask words of it at random."""

from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import DataCollatorForLanguageModeling, PreTrainedTokenizerFast

import cedar
from cedar import col

words = ["[PAD]", "[UNK]", "[MASK]", "the", "cat", "sat", "on", "a", "mat"]
model = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, "[UNK]"))
model.pre_tokenizer = pre_tokenizers.Whitespace()
tokenizer = PreTrainedTokenizerFast(tokenizer_object=model)
tokenizer.add_special_tokens({"pad_token": "[PAD]", "mask_token": "[MASK]", "unk_token": "[UNK]"})


def mask(rows: list[dict[str, Any]], rng: np.random.Generator) -> Any:
    collator = DataCollatorForLanguageModeling(tokenizer, mlm_probability=0.3)
    collator.generator = torch.Generator().manual_seed(int(rng.integers(1 << 63)))  # so that runs and resumes agree
    return collator(rows)


batches = (
    cedar.from_items([{"text": "the cat sat on a mat"}, {"text": "a cat"}, {"text": ""}] * 20)
    .filter(col("text") != "")
    .map(lambda row: {"input_ids": tokenizer(row["text"])["input_ids"]})
    .shuffle(seed=1)
    .batch(8, collate=mask, random=True)
)
for batch in batches.loader():
    assert batch["input_ids"].shape == batch["labels"].shape == batch["attention_mask"].shape
print(batch["input_ids"])
assert torch.equal(batch["input_ids"], list(batches.loader())[-1]["input_ids"])
assert (batch["labels"] != -100).any()
