"""Modules for your own models: embeddings that deduplicate rows, and mixtures of experts placed by popularity."""

from cedar.trainers.dlrm.embeddings import DedupEmbeddings
from cedar.trainers.dlrm.hot import Frequency, frequencies
from cedar.trainers.dlrm.options import FeatureOptions as Feature
from cedar.trainers.dlrm.torchrec import DedupBagCollection
from cedar.trainers.moe.experts import Router, Routing
from cedar.trainers.moe.layer import SymiMoE, router_losses, whole_state_dict
from cedar.trainers.moe.optimizer import SymiOptimizer
from cedar.trainers.moe.options import OptimizerOptions as SymiOptions
from cedar.trainers.moe.placement import Policy

__all__ = [
    "DedupBagCollection", "DedupEmbeddings", "Feature", "Frequency", "Policy", "Router", "Routing", "SymiMoE",
    "SymiOptimizer", "SymiOptions", "frequencies", "router_losses", "whole_state_dict",
]  # fmt: skip
