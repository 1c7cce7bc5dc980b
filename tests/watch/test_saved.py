"""A report as JSON, and back."""

from __future__ import annotations

import json

from cedar.watch.saved import from_json, to_json
from tests.watch.toy_runs import traced


def test_a_saved_report_is_the_report(tmp_path):
    _, report = traced(tmp_path, executor="threads")
    again = from_json(json.loads(json.dumps(to_json(report))))
    assert again == report
    assert str(again) == str(report)
