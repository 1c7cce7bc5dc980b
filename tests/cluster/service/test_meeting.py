"""What ranks say to a service, and what they hear."""

from collections import deque

import pytest

from cedar.cluster.service import meeting
from cedar.cluster.service.meeting import ServiceBoard, ServiceKeyValues


class Line:
    """A service that answers as told."""

    def __init__(self, service):
        self.said, self.messages, self.answers = [], deque(), {}
        self.closed = False

    def send(self, message):
        self.said.append(message)

    def heard(self):
        return self.messages

    def ask(self, message, answer):
        self.said.append(message)
        return self.answers.get(answer)

    def close(self):
        self.closed = True


@pytest.fixture
def at_a_service(monkeypatch):
    monkeypatch.setattr(meeting, "ServiceLine", Line)
    monkeypatch.setattr(meeting, "job_of_ranks", lambda: "job")


def test_words_have_the_name_of_the_job(at_a_service):
    words = ServiceKeyValues("service")
    words.set("a", "1")
    words._line.answers = {"got": "1"}
    assert words.get("a") == "1"
    words.drop("a")
    assert words._line.said == [{"set": ["job/a", "1"]}, {"get": "job/a"}, {"drop": "job/a"}]


def test_words_are_said_again_where_other_ranks_come(at_a_service):
    board = ServiceBoard("service", "run", 1, 2)
    board.put(0, None)
    assert board._line.said == [{"join": ["job/run", 1, 2]}]  # nothing is said before all are there
    board._line.messages.append({"session": 7})
    assert board.ends(0) is None
    board._line.messages.extend([{"session": 8}, {"block": 0, "ends": [3]}])
    assert board.ends(0) == [3]
    assert board._line.said[1:] == [{"say": [7, 0, None]}, {"say": [8, 0, None]}]
    board._line.answers = {"missing": "gone"}
    with pytest.raises(ConnectionError, match="gone"):
        board.missing(0)
    board.leave()
    assert board._line.closed
