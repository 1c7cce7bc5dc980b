"""Pack documents of many lengths into rows of one length for a causal language model, without padding in between."""

import tempfile
from pathlib import Path

import cedar
from cedar import col
from cedar.operators import text

LENGTH = 32
path = Path(tempfile.mkdtemp()) / "poems.txt"
path.write_text("\n".join(f"line {i} " + "la " * (i % 9) for i in range(200)))
tokenizer = text.byte_level()

batches = (
    cedar.read_text(str(path))
    .filter(col("text") != "")
    .map(text.tokenize(tokenizer), "text", into="ids")
    .map(text.special_tokens(end="<eos>", tokenizer=tokenizer), "ids")
    .shuffle(seed=1)
    .pack(LENGTH, "ids")
    .batch(8)
)
for batch in batches.loader(format="torch"):
    segments = batch["segment_ids"]  # 1, 2, ... by text, 0 in padding
    crosses = segments[:, 1:] != segments[:, :-1]
    inputs, labels = batch["ids"][:, :-1], batch["ids"][:, 1:].masked_fill(crosses | (segments[:, 1:] == 0), -100)
    attend = (segments[:, :, None] == segments[:, None, :]).tril()
    assert not attend[:, 1:, :-1].diagonal(dim1=1, dim2=2)[crosses].any()  # the first of a text sees none before it
print(tokenizer.decode(batch["ids"][0].numpy()))
assert inputs.shape[1] == labels.shape[1] == LENGTH - 1
assert inputs.shape == labels.shape == (len(segments), LENGTH - 1)
assert (labels == -100).any()
assert (labels[0] != -100).any()
