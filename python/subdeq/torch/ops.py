"""The engine's calls as operators that PyTorch knows: traced by ``torch.compile``, differentiated by autograd.

Each operator is a function of its arguments; a layer is a line of JSON (`subdeq.spec`) and its parameters. Tensors are passed
where they lie: contiguous ones are not copied.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from .. import _subdeq
from .info import complain

_SOLVE = {torch.float32: _subdeq.solve_f32, torch.float64: _subdeq.solve_f64}
_PULL = {torch.float32: _subdeq.pull_f32, torch.float64: _subdeq.pull_f64}
_PROPAGATE = {torch.float32: _subdeq.propagate_f32, torch.float64: _subdeq.propagate_f64}
_PULL_GRAPH = {torch.float32: _subdeq.pull_graph_f32, torch.float64: _subdeq.pull_graph_f64}


def _array(tensor: Tensor):
    tensor = tensor.detach()
    return (tensor if tensor.is_contiguous() else tensor.contiguous()).numpy()


def _size(y: Tensor) -> tuple[int, int]:
    """Height and width of images, which come as batch x injections x height x width x channels."""
    return (y.shape[2], y.shape[3]) if y.dim() == 5 else (1, 1)


def _state_shape(y: Tensor, injections: int) -> list[int]:
    return [y.shape[0], *y.shape[2:]] if y.dim() == 5 else [y.shape[0], y.shape[1] // injections]


def _run_solve(y: Tensor, parameters: Sequence[Tensor], spec: str, injections: int, on_failure: str):
    z = torch.empty(_state_shape(y, injections), dtype=y.dtype)
    reports = torch.empty(y.shape[0], 4, dtype=torch.float64)
    rows = reports.numpy()
    if not _SOLVE[y.dtype](spec, _size(y), [_array(p) for p in parameters], _array(y), z.numpy(), rows):
        complain(rows, "solves", spec, on_failure)
    return z, reports


def _run_pull(y: Tensor, z: Tensor, v: Tensor, parameters: Sequence[Tensor], spec: str, on_failure: str):
    gy = torch.empty(y.shape, dtype=y.dtype)
    gradients = [torch.empty(p.shape, dtype=p.dtype) for p in parameters]
    rows = np.empty((y.shape[0], 4))
    converged = _PULL[y.dtype](
        spec, _size(y), [_array(p) for p in parameters], _array(y), _array(z), _array(v), gy.numpy(),
        [g.numpy() for g in gradients], rows,
    )
    if not converged:
        complain(rows, "adjoint solves", spec, on_failure)
    return gy, gradients


@torch.library.custom_op("subdeq::solve", mutates_args=(), device_types="cpu")
def solve_op(
    y: Tensor, parameters: Sequence[Tensor], spec: str, injections: int, on_failure: str
) -> tuple[Tensor, Tensor]:
    """Solves ``z = F(z; y)`` for each sample: the states, and a report per sample."""
    return _run_solve(y, parameters, spec, injections, on_failure)


@solve_op.register_fake
def _(y, parameters, spec, injections, on_failure):
    return y.new_empty(_state_shape(y, injections)), y.new_empty((y.shape[0], 4), dtype=torch.float64)


@torch.library.custom_op("subdeq::pull", mutates_args=(), device_types="cpu")
def pull_op(
    y: Tensor, z: Tensor, v: Tensor, parameters: Sequence[Tensor], spec: str, on_failure: str
) -> list[Tensor]:
    """Pulls a gradient ``v`` for the states back: gradients for the injection and for each parameter."""
    gy, gradients = _run_pull(y, z, v, parameters, spec, on_failure)
    return [gy, *gradients]


@pull_op.register_fake
def _(y, z, v, parameters, spec, on_failure):
    return [y.new_empty(y.shape), *(p.new_empty(p.shape) for p in parameters)]


def _save(ctx, inputs, output):
    y, parameters, spec, _, on_failure = inputs
    ctx.save_for_backward(y, output[0], *parameters)
    ctx.spec, ctx.on_failure = spec, on_failure
    ctx.mark_non_differentiable(output[1])


def _pull_back(ctx, v, _):
    y, z, *parameters = ctx.saved_tensors
    gy, *gradients = pull_op(y, z, v, parameters, ctx.spec, ctx.on_failure)
    return gy, gradients, None, None, None


solve_op.register_autograd(_pull_back, setup_context=_save)


class _Solve(torch.autograd.Function):
    """The same two calls without the dispatcher's bookkeeping, which takes longer than a small solve."""

    @staticmethod
    def forward(ctx, y, spec, injections, on_failure, *parameters):
        z, reports = _run_solve(y, parameters, spec, injections, on_failure)
        ctx.save_for_backward(y, z, *parameters)
        ctx.spec, ctx.on_failure = spec, on_failure
        ctx.mark_non_differentiable(reports)
        ctx.set_materialize_grads(False)
        return z, reports

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, v, _):
        if v is None:
            return (None,) * len(ctx.needs_input_grad)
        y, z, *parameters = ctx.saved_tensors
        gy, gradients = _run_pull(y, z, v, parameters, ctx.spec, ctx.on_failure)
        return gy, None, None, None, *gradients


def solve(y: Tensor, parameters: Sequence[Tensor], spec: str, injections: int, on_failure: str) -> tuple[Tensor, Tensor]:
    """Solves ``z = F(z; y)``: by the operator where PyTorch traces, directly where it does not."""
    if torch.compiler.is_compiling():
        return solve_op(y, parameters, spec, injections, on_failure)
    return _Solve.apply(y, spec, injections, on_failure, *parameters)


@torch.library.custom_op("subdeq::propagate", mutates_args=(), device_types="cpu")
def propagate(
    f: Tensor, starts: Tensor, columns: Tensor, values: Tensor, spec: str, on_failure: str
) -> tuple[Tensor, Tensor]:
    """Solves ``Z = F(Z; f)`` over a graph in compressed rows: the states, and one report."""
    z = torch.empty(f.shape, dtype=f.dtype)
    reports = torch.empty(1, 4, dtype=torch.float64)
    rows = reports.numpy()
    if not _PROPAGATE[f.dtype](spec, _array(starts), _array(columns), _array(values), _array(f), z.numpy(), rows):
        complain(rows, "propagations", spec, on_failure)
    return z, reports


@propagate.register_fake
def _(f, starts, columns, values, spec, on_failure):
    return f.new_empty(f.shape), f.new_empty((1, 4), dtype=torch.float64)


@torch.library.custom_op("subdeq::pull_graph", mutates_args=(), device_types="cpu")
def pull_graph(
    f: Tensor, z: Tensor, v: Tensor, starts: Tensor, columns: Tensor, values: Tensor, spec: str, on_failure: str
) -> Tensor:
    """Pulls a gradient for the solution of a propagation back to its injection."""
    gf = torch.empty(f.shape, dtype=f.dtype)
    rows = np.empty((1, 4))
    converged = _PULL_GRAPH[f.dtype](
        spec, _array(starts), _array(columns), _array(values), _array(f), _array(z), _array(v), gf.numpy(), rows
    )
    if not converged:
        complain(rows, "adjoint propagations", spec, on_failure)
    return gf


@pull_graph.register_fake
def _(f, z, v, starts, columns, values, spec, on_failure):
    return f.new_empty(f.shape)


def _save_graph(ctx, inputs, output):
    f, starts, columns, values, spec, on_failure = inputs
    ctx.save_for_backward(f, output[0], starts, columns, values)
    ctx.spec, ctx.on_failure = spec, on_failure
    ctx.mark_non_differentiable(output[1])


def _pull_graph_back(ctx, v, _):
    f, z, starts, columns, values = ctx.saved_tensors
    return pull_graph(f, z, v, starts, columns, values, ctx.spec, ctx.on_failure), None, None, None, None, None


propagate.register_autograd(_pull_graph_back, setup_context=_save_graph)
