"""A dataset in a file."""

import torch
from torch.utils.data import TensorDataset

dataset = TensorDataset(torch.arange(24), torch.arange(24))
