"""Plain text to fixed-length token sequences: drop the empty lines, cut into bytes, pack, batch.

python examples/shakespeare.py tinyshakespeare.txt
"""

import sys

import cedar
from cedar import col

LENGTH = 128


def tokens(text: str) -> list[int]:
    """The bytes of a line, and the newline that ends it."""
    return [*text.encode(), 10]


def pipeline(path: str, batch: int = 32) -> cedar.Pipeline:
    """Batches of int64 tokens, shape (batch, 128), and the segment (line) that each one belongs to."""
    return (
        cedar.read_text(path)
        .filter(col("text").str.strip_chars() != "")
        .map(tokens, "text", into="tokens")
        .select("tokens")
        .shuffle(seed=1)
        .pack(LENGTH, "tokens")
        .batch(batch)
    )


def main(path: str) -> None:
    batches = sequences = 0
    with pipeline(path).loader(format="numpy") as loader:
        for batch in loader:
            if batches == 0:
                text = bytes(batch["tokens"][0].tolist()).decode()
                print("the first sequence:", repr(text[:60]), "...")
            batches += 1
            sequences += len(batch["tokens"])
    print(f"{sequences:,} sequences of {LENGTH} bytes in {batches:,} batches")


if __name__ == "__main__":
    main(sys.argv[1])
