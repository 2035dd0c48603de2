"""From keywords to the line of JSON that says what a layer is."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Optional

from . import _subdeq
from .solvers import Solver, spec_of

#: What must become small for a solve to end.
RULES = ("relative", "absolute", "certified")
#: How gradients go back.
GRADIENTS = ("implicit", "phantom", "unrolled")


@dataclass(frozen=True)
class LayerSpec:
    """A layer without its parameters, checked."""

    json: str
    parameters: tuple[tuple[str, tuple[int, ...]], ...]
    equation: str
    injections: int
    monotone: bool


def stopping(rule: str, tol: float, max_iter: int) -> dict:
    """A stopping rule as the engine reads it."""
    if rule not in RULES:
        raise ValueError(f"stop must be one of {', '.join(RULES)}, not {rule!r}")
    return {"rule": {rule: float(tol)}, "max_iterations": int(max_iter), "whole_batch": False}


def layer_spec(
    units: int,
    map: str,
    *,
    images: bool,
    given: bool = False,
    activation: Optional[str] = None,
    shift: Optional[float] = None,
    power: Optional[float] = None,
    norm: Optional[str] = None,
    margin: Optional[float] = None,
    kernel: Optional[int] = None,
    padding: Optional[str] = None,
    solver: Optional[str | Solver] = None,
    stop: str = "relative",
    tol: float = 1e-3,
    max_iter: int = 200,
    start: Optional[float] = None,
    gradient: str = "implicit",
    backward_solver: Optional[str | Solver] = None,
    backward_tol: Optional[float] = None,
    backward_max_iter: Optional[int] = None,
    steps: Optional[int] = None,
) -> LayerSpec:
    """Checks the keywords of a layer, which mean the same for numpy and PyTorch."""
    if gradient not in GRADIENTS:
        raise ValueError(f"gradient must be one of {', '.join(GRADIENTS)}, not {gradient!r}")
    if steps is not None and gradient == "implicit":
        raise ValueError("steps is for gradient='phantom' and gradient='unrolled'; an implicit gradient has none")
    architecture = json.loads(
        _subdeq.architecture(map, images, given, activation, shift, power, norm, margin, kernel)
    )
    monotone = architecture["parametrisation"]["name"].startswith("monotone")
    usual = solver if solver is not None else ("peaceman-rachford" if monotone else "anderson")
    if gradient == "implicit":
        adjoint = {
            "name": "implicit",
            "solver": spec_of(usual if backward_solver is None else backward_solver),
            # A certified distance is not for a linear equation's residual.
            "stopping": stopping(
                "relative" if stop == "certified" else stop,
                (1e-3 if stop == "certified" else tol) if backward_tol is None else backward_tol,
                max_iter if backward_max_iter is None else backward_max_iter,
            ),
        }
    else:
        for name, value in [("backward_solver", backward_solver), ("backward_tol", backward_tol)]:
            if value is not None:
                raise ValueError(f"{name} is for gradient='implicit'; gradient={gradient!r} solves nothing")
        adjoint = {"name": gradient, "steps": 1 if steps is None else steps}
    text = json.dumps({
        "architecture": architecture,
        "units": units,
        "images": images,
        "padding": padding,
        "solver": spec_of(usual),
        "stopping": stopping(stop, tol, max_iter),
        "adjoint": adjoint,
        "start": start,
    })
    parameters, equation, injections, monotone = _subdeq.layer(text)
    shapes = tuple((name, tuple(shape)) for name, shape in parameters)
    return LayerSpec(text, shapes, equation, injections, monotone)
