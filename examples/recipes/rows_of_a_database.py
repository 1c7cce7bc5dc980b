"""Train on the rows of a database table: a source of your own that reads ranges of its primary key."""

import sqlite3
import tempfile
from collections.abc import Iterator

import pyarrow as pa

import cedar
from cedar.datasets.base import Split

path = tempfile.mkdtemp() + "/shop.db"
with sqlite3.connect(path) as database:
    database.execute("create table orders (id integer primary key, customer text, price real)")
    database.executemany("insert into orders values (?, ?, ?)", [(i, f"c{i % 9}", i / 4) for i in range(1000)])


class Orders:
    """Ranges of 300 ids."""

    def splits(self) -> list[Split]:
        with sqlite3.connect(path) as database:
            (last,) = database.execute("select max(id) from orders").fetchone()
        return [Split(file=0, start=start) for start in range(0, last + 1, 300)]

    def read(self, split: Split) -> Iterator[pa.Table]:
        with sqlite3.connect(path) as database:
            found = database.execute(
                "select id, customer, price from orders where id >= ? and id < ? order by id",
                (split.start, split.start + 300),
            ).fetchall()
        yield pa.table(dict(zip(("id", "customer", "price"), zip(*found, strict=True), strict=True)))


orders = cedar.from_source(Orders())
batch = next(iter(orders.shuffle(seed=1).batch(32).loader()))
print(batch["customer"][:4], batch["price"][:4])
assert sorted(row["id"] for row in orders) == list(range(1000))
