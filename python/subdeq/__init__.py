"""Deep equilibrium models whose fixed point is provably unique.

>>> import numpy as np, subdeq
>>> W = np.array([[1.0, -1.0], [-1.0, 1.0]])
>>> subdeq.certify(W, map="subdeq-tanh").verdict        # the published layer
'refuted'
>>> subdeq.certify(W, map="split-sign").verdict         # a sound one, same weights
'proven'
>>> solution = subdeq.solve(W, np.zeros((1, 2)), map="split-sign")
>>> bool(solution.converged), solution.z.round(4)
(True, array([[1.2, 1.2]], dtype=float32))

`subdeq.torch` has the same layers as `torch.nn.Module`s; it is the only part that needs PyTorch.
"""

import os as _os

from . import _subdeq
from ._subdeq import Certificate, NoCertificate, NotConverged, num_threads, set_num_threads
from .classifier import Classifier, TrainedClassifier, load
from .numpy_api import Solution, certify, degree, solve
from .solvers import Anderson, Broyden, ForwardBackward, PeacemanRachford, Picard

#: Names that `map=` understands, for vectors and images.
MAPS: list[str] = list(_subdeq.MAPS)
#: Names that `model=` of a classifier understands.
MODELS: list[str] = list(_subdeq.MODELS)
#: Names that `map=` understands, for graphs.
GRAPH_MAPS: list[str] = list(_subdeq.GRAPH_MAPS)

# A forked child has none of the parent's threads: it begins anew.
if hasattr(_os, "register_at_fork"):
    _os.register_at_fork(after_in_child=_subdeq.forget_after_fork)

__all__ = [
    "GRAPH_MAPS", "MAPS", "MODELS", "Anderson", "Broyden", "Certificate", "Classifier", "ForwardBackward", "NoCertificate",
    "NotConverged", "PeacemanRachford", "Picard", "Solution", "TrainedClassifier", "certify", "degree", "load",
    "num_threads", "set_num_threads", "solve",
]
