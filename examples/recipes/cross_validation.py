"""Five folds by user: train on four, validate on the fifth, in turns."""

import cedar

rows = cedar.from_items([{"user": i % 60, "x": i} for i in range(600)])
folds = rows.split({f"fold {n}": 0.2 for n in range(5)}, by="user", seed=1)
for name, val in folds.items():
    train = cedar.concat(*(part for other, part in folds.items() if other != name)).shuffle(seed=1)
    print(name, train.count(), val.count())
    assert train.count() + val.count() == 600
    assert not {row["user"] for row in train} & {row["user"] for row in val}
