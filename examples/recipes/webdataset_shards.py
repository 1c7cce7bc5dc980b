"""Write samples as webdataset shards, and train from them with a brace pattern in the path."""

import json
import tempfile

import cedar

folder = tempfile.mkdtemp()
samples = cedar.from_items([{"key": f"{i:05}", "txt": f"caption {i}", "cls": i % 10} for i in range(100)])
written = samples.write(folder, format="tar", rows_per_file=25)
print(written)

batches = (
    cedar.read_tar(f"{folder}/part-{{00000..00003}}.tar")
    .map(lambda data: data.decode(), "txt", into="caption")
    .map(json.loads, "cls", into="label")
    .select("key", "caption", "label")
    .shuffle(seed=1)
    .batch(16)
)
keys = [key for batch in batches.loader() for key in batch["key"]]
assert sorted(keys) == [f"{i:05}" for i in range(100)] != keys
