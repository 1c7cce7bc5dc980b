"""Runs that are watched: what they compute, what they write, and what they answer."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from urllib.parse import urlsplit

import pyarrow as pa
import pyarrow.parquet as pq

import cedar


def add_one(x: int) -> int:
    return x + 1


def numbers(n=2000):
    return cedar.from_items([{"x": i} for i in range(n)]).map(add_one, "x").shuffle(seed=1).batch(50)


def asked(url):
    try:
        with urllib.request.urlopen(url, timeout=30) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def events(path, phase):
    with open(path, encoding="utf-8") as file:
        return [event for event in json.load(file)["traceEvents"] if event["ph"] == phase]


def files(folder, count=4, rows=1000):
    for number in range(count):
        data = {"x": list(range(number * rows, (number + 1) * rows))}
        pq.write_table(pa.table(data), folder / f"{number}.parquet", row_group_size=250)
    return cedar.read_parquet(f"{folder}/*.parquet")


def traced(folder, **options):
    path = folder / "run.json"
    with files(folder).map(add_one, "x").batch(100).loader(trace=path, **options) as loader:
        for _ in range(2):
            list(loader)
        return path, loader.report()


def served(url, path, **query):
    parts = urlsplit(url)
    asked = "&".join([parts.query, *(f"{name}={value}" for name, value in query.items())])
    with urllib.request.urlopen(f"{parts.scheme}://{parts.netloc}{path}?{asked}", timeout=30) as answer:
        return answer.read().decode(), answer.headers
