"""Functions called row by row, and what came of each row."""

from __future__ import annotations

import asyncio

from cedar.core.errors import Skip
from cedar.operators.base import Env
from cedar.operators.calls import Call
from cedar.operators.failures import ErrorContext
from tests.toy_blocks import SITE

SKIPS = ErrorContext(0, "map(f)", SITE, Skip())
STOPS = ErrorContext(0, "map(f)", SITE, None)


def call(fn, *columns, blame=SKIPS, env=None, hashes=None, **options):
    return Call(fn, blame, **options).run(env or Env(), columns, len(columns[0]), hashes)


def reciprocal(x):
    return 1 / x


async def reciprocal_later(x):
    await asyncio.sleep(0)
    return 1 / x
