"""How solves ended, and what is done about those that failed."""

from __future__ import annotations

import warnings
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from .._subdeq import NotConverged
from ..numpy_api import OUTCOMES

#: What `on_failure` may be.
ON_FAILURE = ("warn", "raise", "ignore")


class ConvergenceWarning(RuntimeWarning):
    """A solve, or the adjoint solve of a gradient, did not end within its tolerance."""


@dataclass(frozen=True)
class SolveInfo:
    """How the solve of each sample of a batch ended.

    >>> info = SolveInfo(torch.tensor([[0.0, 7, 1e-4, float("inf")], [1.0, 200, 0.2, float("inf")]]))
    >>> info.outcome, info.converged
    (['converged', 'iteration-limit'], False)
    """

    #: One row per sample: number of the outcome, iterations, residual, error bound.
    reports: Tensor

    @property
    def outcome(self) -> list[str]:
        """One of ``'converged'``, ``'iteration-limit'``, ``'stagnated'``, ``'not-finite'`` per sample."""
        return [OUTCOMES[int(code)] for code in self.reports[:, 0]]

    @property
    def iterations(self) -> Tensor:
        """Applications of the map per sample."""
        return self.reports[:, 1].to(torch.int64)

    @property
    def residual(self) -> Tensor:
        """The last residual of each sample."""
        return self.reports[:, 2]

    @property
    def error_bound(self) -> Tensor:
        """Proven bounds of the distance to the solution, with ``stop='certified'``; else infinite."""
        return self.reports[:, 3]

    @property
    def converged(self) -> bool:
        """Whether every sample converged."""
        return not bool(self.reports[:, 0].any())


_warned: set[tuple[str, str]] = set()


def check_on_failure(on_failure: str) -> None:
    if on_failure not in ON_FAILURE:
        raise ValueError(f"on_failure must be one of {', '.join(ON_FAILURE)}, not {on_failure!r}")


def complain(reports: np.ndarray, what: str, who: str, on_failure: str) -> None:
    """Warns (once for each ``who``) or raises about solves that did not converge, if there are any."""
    if on_failure == "ignore" or not reports[:, 0].any():  # an outcome's number is 0 where all is well
        return
    failed = np.flatnonzero(reports[:, 0])
    code, iterations, residual, _ = reports[failed[0]]
    sentence = (
        f"{failed.size} of {len(reports)} {what} did not converge; the first is sample {failed[0]}: "
        f"{OUTCOMES[int(code)]} after {int(iterations)} iterations at residual {residual:.3e} (allow more iterations, loosen "
        "the tolerance, or use another solver)"
    )
    if on_failure == "raise":
        raise NotConverged(sentence)
    if (what, who) not in _warned:
        _warned.add((what, who))
        warnings.warn(sentence + "; said once", ConvergenceWarning, stacklevel=4)
