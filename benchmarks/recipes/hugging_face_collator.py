"""Hugging Face and torch: tokenize, and let a collator pad each batch and mask words of it at random."""

import torch
from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from torch.utils.data import DataLoader
from transformers import DataCollatorForLanguageModeling, PreTrainedTokenizerFast

words = ["[PAD]", "[UNK]", "[MASK]", "the", "cat", "sat", "on", "a", "mat"]
model = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, "[UNK]"))
model.pre_tokenizer = pre_tokenizers.Whitespace()
tokenizer = PreTrainedTokenizerFast(tokenizer_object=model)
tokenizer.add_special_tokens({"pad_token": "[PAD]", "mask_token": "[MASK]", "unk_token": "[UNK]"})

rows = (
    Dataset.from_list([{"text": "the cat sat on a mat"}, {"text": "a cat"}, {"text": ""}] * 20)
    .filter(lambda text: text != "", input_columns="text")
    .map(lambda text: {"input_ids": tokenizer(text)["input_ids"]}, input_columns="text", remove_columns="text")
)
collator = DataCollatorForLanguageModeling(tokenizer, mlm_probability=0.3)
batches = DataLoader(rows, 8, shuffle=True, collate_fn=collator)
torch.manual_seed(1)
for batch in batches:
    assert batch["input_ids"].shape == batch["labels"].shape == batch["attention_mask"].shape
print(batch["input_ids"])
torch.manual_seed(1)
assert torch.equal(batch["input_ids"], list(batches)[-1]["input_ids"])
assert (batch["labels"] != -100).any()
