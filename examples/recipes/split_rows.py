"""Training and validation parts that stay the same in every epoch, on any number of ranks, and as files are added."""

import cedar

rows = cedar.from_items([{"user": i // 5, "x": i} for i in range(2000)]).shuffle(seed=1)
parts = rows.split({"train": 0.8, "val": 0.1, "test": 0.1})
print({name: part.count() for name, part in parts.items()})

loader = parts["train"].batch(32).loader()
print(len(loader), "steps, known before the first")

by_user = rows.split({"train": 0.9, "val": 0.1}, by="user")  # no user is in both
users = [{row["user"] for row in part} for part in by_user.values()]
assert not users[0] & users[1]
