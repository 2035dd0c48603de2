"""Weights travel: from runs of the program to PyTorch and back, and in from the public codes of MonDEQ and SubDEQ."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Optional

import numpy as np
import torch
from torch import Tensor, nn

from ..classifier import TrainedClassifier, load
from .layers import Equilibrium, EquilibriumConv2d

#: Activations with which monotone maps take their injection as it is.
_UNBOUNDED = ("Relu", "LeakyRelu", "Softplus")


class RunModule(nn.Module):
    """A run's classifier as a PyTorch module: injection, equilibrium, batch norm, pooling, softmax's logits.

    Samples are standardised, batch x channels x height x width (`standardise`). Its ``state_dict`` has the arrays of
    ``model.safetensors`` under PyTorch's names; `to_run` brings them back.
    """

    def __init__(self, trained: TrainedClassifier, **keywords):
        super().__init__()
        self.trained, config = trained, trained.config
        model, data = config["model"], config["data"]
        core = model["core"]
        if core["kind"] != "equilibrium":
            raise ValueError(f"this run's model is {core['kind']}, not an equilibrium: there is no layer for it")
        if model.get("block"):
            raise ValueError("this run's model is a network of several blocks: there is no module for it")
        if "lipschitz" in model:
            raise ValueError("this run's model has a bounded gain (train --lipschitz): its weights are held by every update, which a "
                             "PyTorch module would not do; `subdeq.load` runs it")
        architecture = core["architecture"]
        hidden, self.pool, channels = model["hidden"], model["pool"], model["channels"]
        images = self.pool is not None
        rule, tolerance = next(iter(core["stopping"]["rule"].items()))
        options = {"stop": rule, "tol": tolerance, "max_iter": core["stopping"]["max_iterations"], **keywords}
        kind = EquilibriumConv2d if images else Equilibrium
        if images:
            options["kernel_size"] = architecture.get("kernel", 3)
        self.core = kind(hidden, map=architecture["name"], **options)
        inputs = channels * model["height"] * model["width"]
        make = lambda: nn.Conv2d(channels, hidden, 3, padding=1) if images else nn.Linear(inputs, hidden)
        self.injections = nn.ModuleList(make() for _ in range(self.core.spec.injections))
        self.rectified = not (self.core.spec.monotone and architecture["injection"] == "Inner"
                              and str(_name(architecture["activation"])) in _UNBOUNDED)
        normalise = nn.BatchNorm2d if images else nn.BatchNorm1d
        normed = len(self.injections) if model.get("injection_norm", False) else 0
        self.injection_norms = nn.ModuleList(normalise(hidden) for _ in range(normed))
        self.norm = normalise(hidden)
        arrays = trained.arrays()
        self.head = nn.Linear(arrays["head.weight"].shape[1], model["classes"])
        scale = lambda values: torch.tensor(values, dtype=torch.float32)[:, None, None]
        self.register_buffer("mean", scale(data["mean"]), persistent=False)
        self.register_buffer("deviation", scale(data["deviation"]), persistent=False)
        self.white = float(data["white"])
        self._load(arrays)

    def standardise(self, x: Tensor) -> Tensor:
        """Bytes, or floats as they were fitted, as the model reads them."""
        channels, height, width = self.trained.shape
        return (x.reshape(-1, channels, height, width).float() / self.white - self.mean) / self.deviation

    def forward(self, x: Tensor) -> Tensor:
        """The logits of standardised samples."""
        x = x if self.pool is not None else x.flatten(1)
        parts = [injection(x) for injection in self.injections]
        if self.injection_norms:
            parts = [norm(part) for norm, part in zip(self.injection_norms, parts)]
        y = torch.cat(parts, 1)
        y = y.relu() if self.rectified else y
        z = self.norm(self.core(y))
        if self.pool is not None:
            z = nn.functional.avg_pool2d(z, self.pool).flatten(1)
        return self.head(z)

    def _pairs(self) -> dict[str, Tensor]:
        """The tensors by the names that a ``model.safetensors`` gives them."""
        pairs = {f"core.{name}": getattr(self.core, name) for name, _ in self.core.spec.parameters}
        for k, injection in enumerate(self.injections):
            pairs[f"injection{k}.weight"], pairs[f"injection{k}.bias"] = injection.weight, injection.bias
        norms = {f"injection{k}.norm": norm for k, norm in enumerate(self.injection_norms)}
        for name, norm in {**norms, "norm": self.norm}.items():
            pairs[f"{name}.scale"], pairs[f"{name}.offset"] = norm.weight, norm.bias
            pairs[f"{name}.running_mean"], pairs[f"{name}.running_variance"] = norm.running_mean, norm.running_var
        pairs["head.weight"], pairs["head.bias"] = self.head.weight, self.head.bias
        return pairs

    @torch.no_grad()
    def _load(self, arrays: Mapping[str, np.ndarray]) -> None:
        pairs = self._pairs()
        if pairs.keys() != arrays.keys():
            raise ValueError(f"the run has the arrays {sorted(arrays)}, the module {sorted(pairs)}")
        for name, tensor in pairs.items():
            tensor.copy_(torch.from_numpy(np.ascontiguousarray(arrays[name])).reshape(tensor.shape))

    def to_run(self) -> TrainedClassifier:
        """The module's present weights as a run's model, certified anew; `TrainedClassifier.save` writes it."""
        return self.trained.with_arrays({name: tensor.detach().cpu().numpy() for name, tensor in self._pairs().items()})


def _name(activation) -> str:
    """``"Relu"``, or the key of ``{"Softplus": {..}}``."""
    return activation if isinstance(activation, str) else next(iter(activation))


def from_run(run: str | os.PathLike | TrainedClassifier, **keywords) -> RunModule:
    """The model of a run's folder, of a ``model.safetensors`` or of a `TrainedClassifier` as a PyTorch module. Keywords go to its
    equilibrium layer (``tol=1e-5``)."""
    trained = run if isinstance(run, TrainedClassifier) else load(run)
    return RunModule(trained, **keywords).eval()


def load_mondeq(
    state_dict: Mapping[str, Tensor], m: float = 1.0, *, prefix: str = "", activation: str = "relu", **keywords
) -> tuple[nn.Module, Equilibrium | EquilibriumConv2d]:
    """The injection and the equilibrium layer of a monotone operator network of locuslab's monotone_op_net, from the
    ``state_dict`` of its ``MONSingleFc`` or ``MONSingleConv``: ``U``, ``A``, ``B`` (and ``g``, ``h`` for images).

    >>> _ = torch.manual_seed(0)
    >>> public = {name: torch.randn(6, 4 if name == "U.weight" else 6) / 4 for name in ("U.weight", "A.weight", "B.weight")}
    >>> injection, layer = load_mondeq({**public, "U.bias": torch.zeros(6)}, m=0.5)
    >>> layer(injection(torch.randn(2, 4))).shape, layer.certify().verdict
    (torch.Size([2, 6]), 'proven')
    """
    state = {name[len(prefix):]: tensor for name, tensor in state_dict.items() if name.startswith(prefix)}
    missing = [name for name in ("U.weight", "U.bias", "A.weight", "B.weight") if name not in state]
    if missing:
        raise KeyError(f"{missing} are not in the state_dict under the prefix {prefix!r}; it has {sorted(state_dict)}")
    U, A, B = state["U.weight"], state["A.weight"], state["B.weight"]
    name = {"relu": "mondeq-relu", "tanh": "mondeq-tanh"}[activation]
    if A.dim() == 4:
        # Its images are tori for the injection too, and its factors are normalised.
        injection: nn.Module = nn.Conv2d(U.shape[1], U.shape[0], U.shape[2], padding=U.shape[2] // 2, padding_mode="circular")
        layer: Equilibrium | EquilibriumConv2d = EquilibriumConv2d(
            A.shape[0], map=name, margin=m, kernel_size=A.shape[2], **keywords
        )
        A = state["g"].clamp_min(0).sqrt() * A / A.norm()
        B = state["h"] * B / B.norm()
    else:
        injection, layer = nn.Linear(U.shape[1], U.shape[0]), Equilibrium(A.shape[0], map=name, margin=m, **keywords)
    with torch.no_grad():
        injection.weight.copy_(U), injection.bias.copy_(state["U.bias"])
        layer.a.copy_(A), layer.b.copy_(B)
    return injection, layer


def load_subdeq(
    state_dict: Mapping[str, Tensor], *, W: Optional[str] = None, U: Optional[str] = None, map: str = "subdeq-tanh", **keywords
) -> tuple[nn.Module, Equilibrium | EquilibriumConv2d]:
    """The injection and the equilibrium layer of a SubDEQ written in PyTorch, ``tanh(W z) + relu(U x + b) + shift`` or a
    variant of it. Which tensor is which is seen from the shapes (``W`` is square and has no bias); where that does not decide,
    name them: ``W='f.linear1'``, ``U='f.linear2'``. The injection still has to go through a ReLU.

    >>> cell = nn.ModuleDict({"mix": nn.Linear(6, 6, bias=False), "inject": nn.Linear(4, 6)})
    >>> injection, layer = load_subdeq(cell.state_dict())
    >>> torch.equal(layer.weight, cell["mix"].weight), torch.equal(injection.bias, cell["inject"].bias)
    (True, True)
    """
    modules = sorted({name.rsplit(".", 1)[0] for name in state_dict if name.endswith(".weight")})
    tensor = lambda module, part: state_dict.get(f"{module}.{part}")
    square = lambda module: tensor(module, "weight").dim() > 1 and tensor(module, "weight").shape[0] == tensor(module, "weight").shape[1]
    hidden = [module for module in modules if square(module) and tensor(module, "bias") is None] if W is None else [W]
    if len(hidden) != 1:
        raise ValueError(f"W is one of {hidden or modules}: say which (W='name')")
    weight = tensor(hidden[0], "weight")
    fits = lambda module: module != hidden[0] and tensor(module, "bias") is not None \
        and tensor(module, "weight").dim() == weight.dim() and tensor(module, "weight").shape[0] == weight.shape[0]
    inputs = [module for module in modules if fits(module)] if U is None else [U]
    if len(inputs) != 1:
        raise ValueError(f"U is one of {inputs or modules}: say which (U='name')")
    u, bias = tensor(inputs[0], "weight"), tensor(inputs[0], "bias")
    if weight.dim() == 4:
        injection: nn.Module = nn.Conv2d(u.shape[1], u.shape[0], u.shape[2], padding=u.shape[2] // 2)
        layer: Equilibrium | EquilibriumConv2d = EquilibriumConv2d(weight.shape[0], map=map, **keywords)
    else:
        injection, layer = nn.Linear(u.shape[1], u.shape[0]), Equilibrium(weight.shape[0], map=map, **keywords)
    with torch.no_grad():
        injection.weight.copy_(u), injection.bias.copy_(bias)
        layer.weight.copy_(weight)
    return injection, layer
