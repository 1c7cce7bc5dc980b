"""Prepares recommendation data: reads published logs, clusters them by session, builds histories, and splits them."""

from cedar.core.foreign import suggest_in_module as _suggest
from cedar.preprocessing.vocabulary import Vocabulary
from cedar.recommendation.clustering import Clustered, cluster
from cedar.recommendation.histories import History, add_sessions, history
from cedar.recommendation.inspecting import Inspection, check_clustered, inspect, read_clustered
from cedar.recommendation.readers import criteo, kuairand, mind, otto, yambda
from cedar.recommendation.splitting import split_by_session, split_by_time
from cedar.recommendation.vocabulary import build_vocabularies, load_vocabularies, save_vocabularies

__all__ = [
    "Clustered", "History", "Inspection", "Vocabulary", "add_sessions", "build_vocabularies", "check_clustered",
    "cluster", "criteo", "history", "inspect", "kuairand", "load_vocabularies", "mind", "otto", "read_clustered",
    "save_vocabularies", "split_by_session", "split_by_time", "yambda",
]  # fmt: skip

_suggest(globals())
