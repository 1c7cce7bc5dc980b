"""Draw batches in which a rare class is as frequent as the others."""

import cedar

rows = cedar.from_items([{"x": i, "label": "fraud" if i % 50 == 0 else "fine"} for i in range(5000)])
balanced = rows.balance_classes("label").batch(100)
shares = [float((batch["label"] == "fraud").mean()) for batch in balanced.loader()]
print(f"fraud: {min(shares):.0%} to {max(shares):.0%} of a batch")
assert 0.4 < sum(shares) / len(shares) < 0.6
