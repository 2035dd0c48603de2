"""Equilibrium layers as ordinary modules."""

from __future__ import annotations

import json
import math
from dataclasses import asdict
from typing import Any, Optional

import numpy as np
import torch
from torch import Tensor, nn

from .. import _subdeq
from .._subdeq import Certificate
from ..solvers import Solver, solver_of
from ..spec import LayerSpec, layer_spec
from . import ops
from .info import SolveInfo, check_on_failure

_DTYPES = (torch.float32, torch.float64)


def _check_tensor(what: str, tensor: Tensor, dtype: torch.dtype) -> None:
    if tensor.device.type != "cpu":
        raise RuntimeError(
            f"{what} is on {tensor.device}: this layer computes on the CPU; move the layer and its input there (`.cpu()`). "
            "CUDA tensors in place are the next step"
        )
    if tensor.dtype not in _DTYPES:
        raise TypeError(f"{what} is of {tensor.dtype}: use float32, or float64 where it must be exact")
    if tensor.dtype != dtype:
        raise TypeError(f"{what} is of {tensor.dtype}, the parameters of {dtype}: convert one of them (`.to(dtype)`)")


class _EquilibriumLayer(nn.Module):
    """What dense and convolutional layers share."""

    def __init__(self, spec: LayerSpec, units: int, on_failure: str, device: Any, dtype: Optional[torch.dtype]):
        super().__init__()
        check_on_failure(on_failure)
        self.spec, self.units, self.on_failure = spec, units, on_failure
        self.names = tuple(name for name, _ in spec.parameters)
        self.info: Optional[SolveInfo] = None
        for name, shape in spec.parameters:
            self.register_parameter(name, nn.Parameter(torch.empty(shape, device=device, dtype=dtype)))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draws the parameters as PyTorch draws those of a linear layer: uniform within ``1 / sqrt(fan_in)``. The one number ``b``
        of ``'monotone-tied'`` starts at 1."""
        for parameter in self._parameters_in_order():
            if parameter.dim() == 1:
                nn.init.ones_(parameter)
                continue
            bound = 1 / math.sqrt(parameter.numel() / self.units)
            nn.init.uniform_(parameter, -bound, bound)

    def _parameters_in_order(self) -> list[Tensor]:
        return [getattr(self, name) for name in self.names]

    def _solve(self, y: Tensor, parameters: list[Tensor]) -> Tensor:
        z, reports = ops.solve(y, parameters, self.spec.json, self.spec.injections, self.on_failure)
        self.info = SolveInfo(reports)
        return z

    def _arrays(self) -> list[np.ndarray]:
        return [p.detach().cpu().to(torch.float64).contiguous().numpy() for p in self._parameters_in_order()]

    @property
    def equation(self) -> str:
        """The equation that the layer solves."""
        return self.spec.equation

    def extra_repr(self) -> str:
        return f"{self.units}, {self.spec.equation}"

    def __getstate__(self):
        # How the last solve ended belongs to its caller, not to a copy or a file.
        return {**self.__dict__, "info": None}


class Equilibrium(_EquilibriumLayer):
    """An equilibrium layer on vectors: returns the ``z`` with ``z = F(z; y)`` for the injection ``y``.

    >>> _ = torch.manual_seed(0)
    >>> layer = Equilibrium(8, map="split-sign", tol=1e-4)
    >>> y = torch.rand(3, 8, requires_grad=True)
    >>> z = layer(y)
    >>> z.sum().backward()                       # implicit gradients: for y, and for the parameters
    >>> layer.info.converged, y.grad.shape, layer.weight.grad.shape
    (True, torch.Size([3, 8]), torch.Size([8, 8]))
    >>> layer.certify().verdict                  # is that z the only one?
    'proven'

    Args:
        features: Numbers in a state. The injection is ``(..., features)``; that of ``power-ratio`` is twice as long.
        map: One of `subdeq.MAPS`. All but the monotone ones are proved for injections ``y >= 0`` only: end what makes the
            injection with a ReLU.
        activation, shift, power, norm, margin: Replace the constants of the map.
        solver: ``'anderson'``, ``'picard'``, ``'broyden'``; ``'peaceman-rachford'`` or ``'forward-backward'`` for monotone
            maps; or a value such as ``subdeq.Anderson(window=3)``.
        stop, tol, max_iter: A sample's solve ends when its ``'relative'`` or ``'absolute'`` residual, or its proven
            (``'certified'``) distance to the solution, is at most ``tol``, or after ``max_iter`` applications of the map.
        start: Where every entry starts: 1, or 0 for monotone maps.
        gradient: ``'implicit'`` (exact), ``'phantom'`` (``steps`` terms of its Neumann series; 1 is Jacobian-free) or
            ``'unrolled'`` (the layer is ``steps`` plain iterations).
        backward_solver, backward_tol, backward_max_iter: How an implicit gradient's linear equation is solved; as the
            forward one unless said otherwise.
        on_failure: ``'warn'`` (once), ``'raise'`` (`subdeq.NotConverged`) or ``'ignore'`` where a solve does not converge. A
            backward solve that stops being finite always raises: its gradient is never zero by accident.

    ``layer.info`` says how the last solve of each sample ended.
    """

    def __init__(
        self,
        features: int,
        map: str = "split-sign",
        *,
        activation: Optional[str] = None,
        shift: Optional[float] = None,
        power: Optional[float] = None,
        norm: Optional[str] = None,
        margin: Optional[float] = None,
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
        on_failure: str = "warn",
        device: Any = None,
        dtype: Optional[torch.dtype] = None,
    ):
        spec = layer_spec(
            features, map, images=False, activation=activation, shift=shift, power=power, norm=norm, margin=margin,
            solver=solver, stop=stop, tol=tol, max_iter=max_iter, start=start, gradient=gradient,
            backward_solver=backward_solver, backward_tol=backward_tol, backward_max_iter=backward_max_iter, steps=steps,
        )
        super().__init__(spec, features, on_failure, device, dtype)

    def forward(self, y: Tensor) -> Tensor:
        """The equilibria of injections ``(..., features)``."""
        length, parameters = self.units * self.spec.injections, self._parameters_in_order()
        _check_tensor("the injection", y, parameters[0].dtype)
        if y.dim() == 0 or y.shape[-1] != length:
            raise ValueError(f"an injection of shape {tuple(y.shape)}: its last dimension must be {length}")
        if y.dim() == 2:
            return self._solve(y, parameters)
        return self._solve(y.reshape(-1, length), parameters).reshape(*y.shape[:-1], self.units)

    def certify(self, inputs: Optional[str] = None, injection: Any = None) -> Certificate:
        """What is proved about the fixed points with the present parameters: for every injection that the map is meant for,
        for ``inputs='all'`` or ``'nonnegative'``, or for one ``injection``."""
        if injection is not None:
            injection = np.ascontiguousarray(torch.as_tensor(injection).detach(), dtype=np.float64).reshape(-1)
        return _subdeq.certify_layer(self.spec.json, (1, 1), self._arrays(), inputs, injection)

    def effective_weights(self) -> list[np.ndarray]:
        """The weight matrices that the parameters stand for, in f64: ``[W]``, or ``[P, N]`` with ``W = P - N``."""
        arrays = _subdeq.weights(self.spec.json, (1, 1), self._arrays())
        return [array.reshape(self.units, self.units) for array in arrays]


class EquilibriumConv2d(_EquilibriumLayer):
    """An equilibrium layer on images: returns the ``z`` with ``z = F(z; y)``.

    >>> _ = torch.manual_seed(0)
    >>> layer = EquilibriumConv2d(4, map="split-sign")
    >>> z = layer(torch.rand(2, 4, 8, 8))
    >>> z.shape, layer.info.converged
    (torch.Size([2, 4, 8, 8]), True)
    >>> layer.certify(size=(8, 8)).verdict
    'proven'

    Injections and states are batch x channels x height x width. The engine works on ``torch.channels_last``: injections that
    lie so are not copied, and states come out so, as those of PyTorch's own convolutions do. ``padding`` is ``'zero'`` or
    ``'circular'`` (the default of the monotone maps). Kernels are 3x3; those of the monotone maps, ``A`` and ``B`` of the products,
    may also be 1x1 or 5x5 (``kernel_size``). Everything else is as for `Equilibrium`.
    """

    def __init__(
        self,
        channels: int,
        map: str = "split-sign",
        *,
        kernel_size: int = 3,
        padding: Optional[str] = None,
        activation: Optional[str] = None,
        shift: Optional[float] = None,
        power: Optional[float] = None,
        norm: Optional[str] = None,
        margin: Optional[float] = None,
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
        on_failure: str = "warn",
        device: Any = None,
        dtype: Optional[torch.dtype] = None,
    ):
        spec = layer_spec(
            channels, map, images=True, kernel=kernel_size, padding=padding, activation=activation, shift=shift, power=power, norm=norm,
            margin=margin, solver=solver, stop=stop, tol=tol, max_iter=max_iter, start=start, gradient=gradient,
            backward_solver=backward_solver, backward_tol=backward_tol, backward_max_iter=backward_max_iter, steps=steps,
        )
        super().__init__(spec, channels, on_failure, device, dtype)

    def forward(self, y: Tensor) -> Tensor:
        """The equilibria of injections batch x channels x height x width."""
        channels, parameters = self.units * self.spec.injections, self._parameters_in_order()
        _check_tensor("the injection", y, parameters[0].dtype)
        if y.dim() != 4 or y.shape[1] != channels or 0 in y.shape[2:]:
            raise ValueError(f"an injection of shape {tuple(y.shape)}: it must be batch x {channels} x height x width")
        parts = y.unflatten(1, (self.spec.injections, self.units)).permute(0, 1, 3, 4, 2)
        return self._solve(parts.contiguous(), parameters).permute(0, 3, 1, 2)

    def certify(
        self, inputs: Optional[str] = None, injection: Any = None, *, size: Optional[tuple[int, int]] = None
    ) -> Certificate:
        """What is proved about the fixed points on images of a ``size`` (height, width): see `Equilibrium.certify`. The
        ``injection`` is one of channels x height x width."""
        if injection is not None:
            parts = torch.as_tensor(injection).detach()
            size = tuple(parts.shape[-2:])
            parts = parts.unflatten(0, (self.spec.injections, self.units)).permute(0, 2, 3, 1)
            injection = np.ascontiguousarray(parts, dtype=np.float64).reshape(-1)
        if size is None:
            raise ValueError("certify(size=(height, width)): what is proved of a convolution depends on the size of its images")
        return _subdeq.certify_layer(self.spec.json, tuple(size), self._arrays(), inputs, injection)


class GraphPropagation(nn.Module):
    """Propagation over a graph to its equilibrium, ``Z = F(Z; f)``: APPNP and its subhomogeneous variants.

    >>> edges = torch.tensor([[0, 1, 2], [1, 2, 0]])
    >>> layer = GraphPropagation(edges, nodes=3, map="appnp-tanh")
    >>> f = torch.rand(3, 2, requires_grad=True)
    >>> layer(f).sum().backward()
    >>> f.grad.shape, layer.certify().verdict
    (torch.Size([3, 2]), 'proven')

    Args:
        edge_index: 2 x edges, the ends of the undirected edges. The matrix is ``D^-1/2 (A + I) D^-1/2``.
        nodes: Number of nodes.
        map: One of `subdeq.GRAPH_MAPS`.
        teleport: The probability with which the injection is returned to.
        activation, shift: Replace the constants of the map.
        solver: ``'picard'``, ``'anderson'`` or ``'broyden'``, or a value of theirs.

    The injection is nodes x channels. The graph has no gradient.
    """

    def __init__(
        self,
        edge_index: Tensor,
        nodes: int,
        map: str = "appnp-tanh",
        *,
        teleport: float = 0.1,
        activation: Optional[str] = None,
        shift: Optional[float] = None,
        solver: str | Solver = "picard",
        tol: float = 1e-6,
        max_iter: int = 500,
        backward_tol: Optional[float] = None,
        on_failure: str = "warn",
        dtype: Optional[torch.dtype] = None,
    ):
        super().__init__()
        check_on_failure(on_failure)
        text, self.equation = _subdeq.graph_map(map, teleport, activation, shift)
        method = solver_of(solver)
        forms = {"picard": "Picard", "anderson": "Anderson", "broyden": "Broyden"}
        if method.name not in forms:
            raise ValueError(f"a propagation is solved by {', '.join(forms)}; {method.name} is for monotone layers")
        values = asdict(method)
        engine = {forms[method.name]: values} if values else forms[method.name]
        solve = {"solver": engine, "tolerance": float(tol), "max_iterations": int(max_iter)}
        backward = {**solve, "tolerance": float(tol if backward_tol is None else backward_tol)}
        self.spec = json.dumps({"map": json.loads(text), "forward": solve, "backward": backward})
        self.nodes, self.on_failure = nodes, on_failure
        self.info: Optional[SolveInfo] = None
        edges = torch.as_tensor(edge_index)
        if edges.dim() != 2 or edges.shape[0] != 2 or edges.is_floating_point() or (edges.numel() and edges.min() < 0):
            raise ValueError(f"edge_index of shape {tuple(edges.shape)}: it must hold node numbers, 2 x edges")
        starts, columns, values = _subdeq.normalised_adjacency(nodes, [tuple(edge) for edge in edges.t().tolist()])
        self.register_buffer("starts", torch.from_numpy(starts))
        self.register_buffer("columns", torch.from_numpy(columns))
        self.register_buffer("values", torch.from_numpy(values).to(dtype or torch.get_default_dtype()))

    def forward(self, f: Tensor) -> Tensor:
        """The equilibrium of an injection nodes x channels."""
        _check_tensor("the injection", f, self.values.dtype)
        if f.dim() != 2 or f.shape[0] != self.nodes or f.shape[1] == 0:
            raise ValueError(f"an injection of shape {tuple(f.shape)}: it must be {self.nodes} nodes x channels")
        z, reports = ops.propagate(f, self.starts, self.columns, self.values, self.spec, self.on_failure)
        self.info = SolveInfo(reports)
        return z

    def certify(self, inputs: Optional[str] = None, *, channels: int = 1) -> Certificate:
        """What is proved about the equilibrium over this graph, for injections ``f >= 0`` or for ``inputs='all'``."""
        arrays = [tensor.cpu().contiguous().numpy() for tensor in (self.starts, self.columns, self.values.double())]
        return _subdeq.certify_graph(self.spec, *arrays, channels, inputs)

    def extra_repr(self) -> str:
        return f"{self.nodes} nodes, {self.equation}"

    def __getstate__(self):
        return {**self.__dict__, "info": None}
