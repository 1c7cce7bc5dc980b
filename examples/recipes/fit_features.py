"""Scale numbers, bucket them, and number categories, by what one pass over the training part found."""

import tempfile

import cedar
from cedar.preprocessing import Quantiles, StandardScaler, Vocabulary

rows = cedar.from_items(
    [{"age": 20 + i % 50, "spent": float(i * i), "city": f"c{i % 7 * (i % 3)}"} for i in range(2000)]
)
parts = rows.split({"train": 0.9, "val": 0.1})
fitted = cedar.fit(
    parts["train"],
    StandardScaler("age"),
    Quantiles("spent", bins=10),
    Vocabulary("city", min_count=5, null="own"),
)
path = tempfile.mkdtemp() + "/features.json"
fitted.save(path)

fitted = cedar.Fitted.load(path)  # in the job that serves or validates
for batch in parts["val"].apply(fitted).batch(32).loader():
    assert batch["city"].max() < fitted["city"].size  # rows of an embedding table
print(batch["age"][:3], batch["spent"][:3], batch["city"][:3], fitted["city"].size)
