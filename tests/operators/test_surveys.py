"""A survey is made once for each policy, by the process that runs the pipeline."""

import pickle

from cedar.core.skip import Skip
from cedar.operators.surveys import Survey


def test_each_policy_has_a_pass_of_its_own():
    made = []
    survey = Survey(lambda on_error: made.append(on_error) or len(made))
    tolerant, strict = survey.under(Skip()), survey.under(None)
    assert [tolerant.value, strict.value, tolerant.value, survey.under(Skip()).value] == [1, 2, 1, 1]
    assert made == [Skip(), None]


def test_workers_get_what_was_found():
    survey = Survey(lambda on_error: [on_error]).under(Skip())
    assert pickle.loads(pickle.dumps(survey)).value == [Skip()]
