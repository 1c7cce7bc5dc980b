"""Two small tables, and what is looked up in them."""

import numpy as np
import torch

from cedar.trainers.dlrm.tables import Bags, Table

TABLES = (Table("users", 5), Table("items", 9))


def bags_of(table, lists, weights=None):
    offsets = np.concatenate([[0], np.cumsum([len(ids) for ids in lists])]).astype(np.int64)
    flat = torch.tensor([i for ids in lists for i in ids], dtype=torch.int64)
    weighing = None if weights is None else torch.tensor([w for row in weights for w in row], dtype=torch.float64)
    return Bags(table, flat, torch.from_numpy(offsets), weighing)
