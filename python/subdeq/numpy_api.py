"""Degrees, certificates and solutions for numpy arrays."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Optional

import numpy as np

from . import _subdeq
from ._subdeq import Certificate, NotConverged
from .solvers import Solver
from .spec import layer_spec

#: Names of outcomes, by their number in a report.
OUTCOMES = ("converged", "iteration-limit", "stagnated", "not-finite")


def degree(activation: str, shift: float = 0.0, power: float = 1.0, domain: str = "reals") -> float:
    """The tight degree of subhomogeneity of ``(activation(u) + shift) ** power``, rounded up.

    Below one, a layer with weights of one sign per row has exactly one fixed point.

    >>> round(degree("tanh", shift=1.2, domain="nonnegative"), 6)
    0.246994
    >>> degree("relu")
    1.0
    """
    return _subdeq.degree(activation, float(shift), float(power), domain)


def certify(
    W: Any,
    map: str = "subdeq-tanh",
    injection: Any = None,
    *,
    inputs: Optional[str] = None,
    size: Optional[tuple[int, int]] = None,
    activation: Optional[str] = None,
    shift: Optional[float] = None,
    power: Optional[float] = None,
    norm: Optional[str] = None,
    teleport: Optional[float] = None,
) -> Certificate:
    """What is proved about the fixed points of a map with the weights ``W``.

    ``W`` is n x n, or c x c x 3 x 3 for images (then ``size`` is their height and width). Without an ``injection``, the
    verdict is for every input that the map is meant for, or for ``inputs='all'`` or ``'nonnegative'``; with one, for that
    input alone.

    >>> certificate = certify([[1.0, -1.0], [-1.0, 1.0]], map="subdeq-tanh")
    >>> certificate.verdict, len(certificate.witnesses)
    ('refuted', 2)
    >>> certificate.recheck()                   # by independent code; raises where a claim does not hold
    >>> sound = certify([[1.0, -1.0], [-1.0, 1.0]], map="split-sign")
    >>> round(sound.factor, 5), sound.metric
    (0.53668, 'thompson')
    >>> Certificate.from_json(sound.to_json()) == sound
    True
    """
    weights = np.ascontiguousarray(W, dtype=np.float64)
    if injection is not None:
        injection = np.ascontiguousarray(injection, dtype=np.float64).reshape(-1)
    if weights.ndim == 4 and size is None:
        size = (8, 8)
    return _subdeq.certify(weights, map, size, inputs, injection, activation, shift, power, norm, teleport)


@dataclass(frozen=True)
class Solution:
    """The equilibria of a batch, and how each was reached."""

    #: The states, one row (or image) per sample.
    z: np.ndarray
    #: One of ``'converged'``, ``'iteration-limit'``, ``'stagnated'``, ``'not-finite'`` per sample.
    outcome: np.ndarray
    #: Applications of the map per sample.
    iterations: np.ndarray
    #: The last residual of each sample.
    residual: np.ndarray
    #: Proven bounds of the distance to the solution; infinite where there is no proof.
    error_bound: np.ndarray

    @property
    def converged(self) -> bool:
        """Whether every sample converged."""
        return bool((self.outcome == OUTCOMES[0]).all())

    def require_converged(self) -> "Solution":
        """The same solution, or `NotConverged` with the first sample that did not converge."""
        failed = np.flatnonzero(self.outcome != OUTCOMES[0])
        if failed.size:
            first = failed[0]
            raise NotConverged(
                f"{failed.size} of {len(self.outcome)} solves did not converge; the first is sample {first}: "
                f"{self.outcome[first]} after {self.iterations[first]} iterations at residual {self.residual[first]:.3e}"
            )
        return self


def solve(
    W: Any,
    y: Any,
    map: str = "split-sign",
    *,
    solver: Optional[str | Solver] = None,
    tol: float = 1e-6,
    stop: str = "relative",
    max_iter: int = 1000,
    start: Optional[float] = None,
    dtype: Any = np.float32,
    activation: Optional[str] = None,
    shift: Optional[float] = None,
    power: Optional[float] = None,
    norm: Optional[str] = None,
) -> Solution:
    """Solves ``z = F(z; y)`` for each row (or image) of ``y``.

    ``W`` is n x n and ``y`` batch x n, or ``W`` is c x c x 3 x 3 (for monotone maps also 1 x 1 or 5 x 5) and ``y`` batch x c x
    height x width. ``stop`` says what must
    fall below ``tol``: the ``'relative'`` or ``'absolute'`` residual, or the proven (``'certified'``) distance to the solution.

    >>> W = np.array([[0.5, -2.0], [1.0, 0.3]])
    >>> solution = solve(W, [[0.1, 0.0], [0.5, 0.5]], map="split-sign", tol=1e-4, stop="certified").require_converged()
    >>> bool((solution.error_bound <= 1e-4).all())
    True
    """
    weights, y = np.ascontiguousarray(W, dtype=np.float64), np.asarray(y, dtype=dtype)
    if np.dtype(dtype) not in (np.float32, np.float64):
        raise ValueError(f"dtype must be float32 or float64, not {np.dtype(dtype)}")
    images = weights.ndim == 4
    if weights.ndim not in (2, 4) or weights.shape[0] != weights.shape[1] or (images and weights.shape[2] != weights.shape[3]):
        raise ValueError(f"weights of shape {weights.shape}: they are n x n, or c x c x 3 x 3 for images")
    units = weights.shape[0]
    spec = layer_spec(
        units, map, images=images, given=True, solver=solver, stop=stop, tol=tol, max_iter=max_iter, start=start,
        activation=activation, shift=shift, power=power, norm=norm, kernel=weights.shape[2] if images else None,
    )
    wanted = 4 if images else 2
    if y.ndim != wanted or y.shape[1] != units * spec.injections:
        form = f"batch x {units * spec.injections}" + (" x height x width" if images else "")
        raise ValueError(f"y of shape {y.shape}: `{map}` takes {form}")
    size = (y.shape[2], y.shape[3]) if images else (1, 1)
    flat, _ = _subdeq.take_weights(spec.json, size, weights)
    inner = to_engine(y, spec.injections) if images else np.ascontiguousarray(y)
    state = np.empty((y.shape[0], *size, units) if images else (y.shape[0], units), dtype)
    reports = np.empty((y.shape[0], 4))
    run = _subdeq.solve_f32 if state.dtype == np.float32 else _subdeq.solve_f64
    # Of 'monotone-tied', A is given and b is 1; the other maps have no second parameter here.
    parameters = [flat.astype(dtype)] + [np.ones(shape, dtype) for _, shape in spec.parameters[1:]]
    run(spec.json, size, parameters, inner, state, reports)
    bounds = reports[:, 3]
    if stop != "certified" and y.shape[0]:
        as_f64 = [array.astype(np.float64) for array in (*parameters, inner, state)]
        bounds = _subdeq.error_bounds(spec.json, size, as_f64[:-2], as_f64[-2], as_f64[-1])
    z = np.ascontiguousarray(state.transpose(0, 3, 1, 2)) if images else state
    outcome = np.array(OUTCOMES)[reports[:, 0].astype(int)]
    return Solution(z, outcome, reports[:, 1].astype(int), reports[:, 2], bounds)


def to_engine(y: np.ndarray, injections: int) -> np.ndarray:
    """Images as the engine has them: height x width x channels, several injections one after the other."""
    batch, channels, height, width = y.shape
    parts = y.reshape(batch, injections, channels // injections, height, width)
    return np.ascontiguousarray(parts.transpose(0, 1, 3, 4, 2))
