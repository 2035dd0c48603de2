"""The fixed point of any differentiable function, with its implicit gradient."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Optional

import torch
from torch import Tensor

from .._subdeq import NotConverged
from ..solvers import Solver, solver_of
from ..spec import GRADIENTS
from .info import SolveInfo, check_on_failure, complain
from .methods import iterate


def fixed_point(
    f: Callable[..., Tensor],
    z0: Tensor,
    params: Sequence[Tensor] = (),
    *,
    solver: str | Solver = "anderson",
    stop: str = "relative",
    tol: float = 1e-3,
    max_iter: int = 200,
    gradient: str = "implicit",
    backward_solver: Optional[str | Solver] = None,
    backward_tol: Optional[float] = None,
    backward_max_iter: Optional[int] = None,
    steps: int = 1,
    on_failure: str = "warn",
) -> tuple[Tensor, SolveInfo]:
    """Solves ``z = f(z, *params)`` for each sample of a batch, started at ``z0``.

    >>> _ = torch.manual_seed(0)
    >>> W, y = torch.nn.Parameter(torch.randn(5, 5) / 5), torch.randn(3, 5)
    >>> z, info = fixed_point(lambda z: torch.tanh(z @ W.T) + y, torch.zeros(3, 5), tol=1e-6)
    >>> info.converged, torch.allclose(z, torch.tanh(z @ W.T) + y, atol=1e-5)
    (True, True)
    >>> z.sum().backward(); W.grad.shape
    torch.Size([5, 5])

    Args:
        f: Takes a batch of states and returns one of the same shape; samples (the first dimension) do not interact. What it
            closes over (a module's parameters, an injection) gets its gradient.
        z0: Where the iteration starts, batch first.
        params: Passed to ``f`` after the state.
        solver: ``'anderson'``, ``'picard'``, ``'broyden'`` or a value of theirs.
        stop, tol, max_iter: A sample ends when its ``'relative'`` or ``'absolute'`` residual is at most ``tol``, or after
            ``max_iter`` applications of ``f``, which is always applied to the whole batch.
        gradient: ``'implicit'`` (exact at the solution), ``'phantom'`` (``steps`` terms of its Neumann series) or
            ``'unrolled'`` (backpropagation through ``steps`` plain iterations, which are then the layer).
        backward_solver, backward_tol, backward_max_iter: How an implicit gradient's linear equation is solved; as the
            forward one unless said otherwise.
        on_failure: ``'warn'`` (once), ``'raise'`` or ``'ignore'`` where a solve does not converge. A backward solve that
            stops being finite always raises.

    Returns:
        The states and how each was reached. Nothing is proved about them: for that, use a layer with a certificate.
    """
    check_on_failure(on_failure)
    if gradient not in GRADIENTS:
        raise ValueError(f"gradient must be one of {', '.join(GRADIENTS)}, not {gradient!r}")
    if stop not in ("relative", "absolute"):
        raise ValueError(f"stop must be 'relative' or 'absolute', not {stop!r}: nothing is proved about a map of your own")
    if not (tol >= 0 and math.isfinite(tol)) or max_iter < 1 or steps < 1:
        raise ValueError(f"tol={tol}, max_iter={max_iter}, steps={steps}: a number from 0 and at least one step are needed")
    if not z0.is_floating_point() or z0.dim() == 0:
        raise TypeError(f"z0 of {z0.dtype} and shape {tuple(z0.shape)}: a batch of floating-point states is needed")
    call = (lambda z: f(z, *params)) if params else f
    if gradient == "unrolled":
        return _unrolled(call, z0, steps, stop == "relative", tol)
    forward = (solver_of(solver), stop == "relative", tol, max_iter)
    with torch.no_grad():
        z, reports = _solve(call, z0.detach(), *forward)
    complain(reports.cpu().numpy(), "solves", _name(f), on_failure)
    info = SolveInfo(reports)
    if not torch.is_grad_enabled():
        return z, info
    with torch.enable_grad():
        at = z.detach().requires_grad_()
        image = _checked(call(at), z0)
    if image.grad_fn is None or not image.requires_grad:
        return z, info
    if gradient == "phantom":
        adjoint = _Neumann(at, image, steps)
    else:
        adjoint = _Adjoint(
            at, image, solver_of(solver if backward_solver is None else backward_solver), forward[1],
            tol if backward_tol is None else backward_tol, max_iter if backward_max_iter is None else backward_max_iter,
            _name(f), on_failure,
        )
    return _Attach.apply(image, z, adjoint), info


def _name(f: Callable) -> str:
    return getattr(f, "__qualname__", type(f).__name__)


def _checked(image: Tensor, z0: Tensor) -> Tensor:
    if not isinstance(image, Tensor) or image.shape != z0.shape:
        found = tuple(image.shape) if isinstance(image, Tensor) else type(image).__name__
        raise ValueError(f"f returned {found} for states of shape {tuple(z0.shape)}: it must return states")
    return image


def _solve(call, z0: Tensor, solver: Solver, relative: bool, tol: float, max_iter: int) -> tuple[Tensor, Tensor]:
    step = lambda z: _flat(_checked(call(z.reshape(z0.shape)), z0))
    z, reports = iterate(step, _flat(z0), solver, relative, tol, max_iter)
    return z.reshape(z0.shape), reports


def _flat(z: Tensor) -> Tensor:
    """A row per sample."""
    return z.reshape(z.shape[0], math.prod(z.shape[1:]))


class _Attach(torch.autograd.Function):
    """The solution, with a gradient that goes through the adjoint equation into the graph of one application."""

    @staticmethod
    def forward(ctx, image, z, adjoint):
        ctx.adjoint = adjoint
        return z.view_as(z)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, v):
        return ctx.adjoint(v), None, None


class _Neumann:
    """``v + J'v + ..``, as many terms as steps."""

    def __init__(self, at: Tensor, image: Tensor, steps: int):
        self.at, self.image, self.steps = at, image, steps

    def __call__(self, v: Tensor) -> Tensor:
        g = v
        for _ in range(1, self.steps):
            g = v + torch.autograd.grad(self.image, self.at, g, retain_graph=True)[0]
        return g


class _Adjoint:
    """The solution of ``g = J'g + v``."""

    def __init__(self, at, image, solver, relative, tol, max_iter, name, on_failure):
        self.at, self.image, self.name, self.on_failure = at, image, name, on_failure
        self.method = (solver, relative, tol, max_iter)

    def __call__(self, v: Tensor) -> Tensor:
        if not bool(torch.isfinite(v).all()):
            raise ValueError("the gradient that arrives at the fixed point is not finite")
        pull = lambda g: torch.autograd.grad(self.image, self.at, g, retain_graph=True)[0] + v
        g, reports = _solve(pull, v, *self.method)
        rows = reports.cpu().numpy()
        if (rows[:, 0] == 3).any():
            raise NotConverged(
                f"the adjoint solve of {self.name} stopped being finite: there is no gradient (the map does not contract there; "
                "try solver='broyden', or a map with a certificate)"
            )
        complain(rows, "adjoint solves", self.name, self.on_failure)
        return g


def _unrolled(call, z0: Tensor, steps: int, relative: bool, tol: float) -> tuple[Tensor, SolveInfo]:
    """Plain iterations, differentiated as they stand: there is nothing that could fail to converge."""
    before = z = z0
    for _ in range(steps):
        before, z = z, _checked(call(z), z0)
    with torch.no_grad():
        residual = (_flat(z) - _flat(before)).norm(dim=1)
        if relative:
            residual = residual / (1e-5 + _flat(z).norm(dim=1))
        code = torch.where(residual <= tol, 0.0, torch.where(residual.isfinite(), 1.0, 3.0))
        unknown = torch.full_like(residual, float("inf"))
        reports = torch.stack([code, torch.full_like(code, steps), residual, unknown], 1).double()
    return z, SolveInfo(reports)
