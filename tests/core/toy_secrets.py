"""Credentials that must not be shown."""

from __future__ import annotations

PASSWORD, TOKEN = "hunter2" * 3, "tok" + "5ecre7" * 4
