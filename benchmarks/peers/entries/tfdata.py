"""tf.data. "own ops": TensorFlow's operators in the graph, where a workload has them (peers/tfops.py); "functions": a
whole batch of the shared functions in a ``numpy_function``. Private threads, two calls at a time, deterministic.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from benchmarks.peers import tfops
from benchmarks.peers.entry import Entry, Epochs
from benchmarks.peers.workload import Cached, Chunks, Rows, Work, Workload


def run(workload: Workload, work: Work, setting: str) -> Iterable[Any]:
    tf = importlib.import_module("tensorflow")
    data = tf.data.Dataset
    batches: Iterable[Any]
    if setting == "own ops":
        batches = finished(tf, tfops.DATASETS[workload.name](tf, work))
        return batches
    if isinstance(work, Chunks):
        signature = work.chunk(0)
        results = data.range(len(work)).map(call(tf, work.chunk, signature), num_parallel_calls=2)
        return Epochs(lambda: work.assemble(numpy_batches(finished(tf, results))))
    assert isinstance(work, Rows)
    if isinstance(work, Cached):
        batches = finished(tf, cached(tf, work))
        return batches
    starts = data.range(0, work.rows, work.batch)

    def whole(start: int) -> Any:
        return work.many(range(start, min(start + work.batch, work.rows)))

    batches = finished(tf, starts.map(call(tf, whole, work.many([0])), num_parallel_calls=2))
    return batches


def call(tf: Any, fn: Any, signature: Any) -> Any:
    """``fn`` of one number, which gives a dict of ndarrays of these types, in the graph."""
    names = list(signature)
    types = [tf.as_dtype(np.asarray(signature[name]).dtype) for name in names]

    def flat(i: Any) -> list[Any]:
        result = fn(int(i))
        return [np.ascontiguousarray(result[name]) for name in names]

    return lambda i: dict(zip(names, tf.numpy_function(flat, [i], types, stateful=False), strict=True))


def cached(tf: Any, work: Cached) -> Any:
    """The deterministic part kept by ``cache()``, in memory; the rest on each epoch."""
    row = work.row(0)

    def prefix(i: int) -> Any:
        return {"kept": work.prefix(work.read(i))}

    kept = call(tf, prefix, prefix(0))
    names = list(row)
    types = [tf.as_dtype(np.asarray(row[name]).dtype) for name in names]

    def rest(ids: Any, images: Any) -> list[Any]:
        batch = work.collate([work.suffix(int(i), image) for i, image in zip(ids, images, strict=True)])
        return [batch[name] for name in names]

    def with_shape(i: Any) -> tuple[Any, Any]:
        return i, tf.ensure_shape(kept(i)["kept"], work.prefix(work.read(0)).shape)

    dataset = tf.data.Dataset.range(work.rows).map(with_shape, num_parallel_calls=2).cache().batch(work.batch)
    return dataset.map(
        lambda i, images: dict(zip(names, tf.numpy_function(rest, [i, images], types), strict=True)),
        num_parallel_calls=2,
    )


def finished(tf: Any, dataset: Any) -> Any:
    options = tf.data.Options()
    options.threading.private_threadpool_size = 2
    options.deterministic = True
    return dataset.prefetch(4).with_options(options)


def numpy_batches(dataset: Any) -> Iterator[Any]:
    for result in dataset:
        yield {name: value.numpy() for name, value in result.items()}


def settings(workload: Workload) -> tuple[str, ...]:
    return ("own ops", "functions") if workload.name in tfops.DATASETS else ("functions",)


ENTRY = Entry(
    name="tf.data",
    module="tensorflow",
    environment="tensorflow",
    requirements=("tensorflow-cpu==2.21.0",),
    distributions=("tensorflow-cpu",),
    settings=settings,
    run=run,
    variables={"TF_CPP_MIN_LOG_LEVEL": "2", "CUDA_VISIBLE_DEVICES": ""},
)
