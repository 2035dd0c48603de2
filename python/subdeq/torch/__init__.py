"""Equilibrium layers, and fixed points of your own functions, for PyTorch.

>>> import torch
>>> from torch import nn
>>> from subdeq.torch import Equilibrium
>>> _ = torch.manual_seed(0)
>>> net = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), Equilibrium(16, map="split-sign"), nn.Linear(16, 3))
>>> net(torch.randn(5, 4)).shape
torch.Size([5, 3])
>>> net[2].certify().verdict
'proven'
"""

from .fixed_point import fixed_point
from .info import ConvergenceWarning, SolveInfo
from .interchange import RunModule, from_run, load_mondeq, load_subdeq
from .layers import Equilibrium, EquilibriumConv2d, GraphPropagation

__all__ = [
    "ConvergenceWarning", "Equilibrium", "EquilibriumConv2d", "GraphPropagation", "RunModule", "SolveInfo", "fixed_point",
    "from_run", "load_mondeq", "load_subdeq",
]
