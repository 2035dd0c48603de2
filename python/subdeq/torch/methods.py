"""Picard's, Anderson's and Broyden's iterations on batches of flat states, in plain PyTorch.

They follow the engine's rules (crates/engine/src/cpu/solve): each sample has a history of its own, ends by itself, and a step
that does not help is taken back. A state is a row; what a method proposes is the next argument of the map for every row.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from ..solvers import Anderson, Broyden, Picard, Solver

#: Iterations without a smaller residual after which a residual near the rounding level counts as stagnated.
PATIENCE = 12
#: The rounding level, in units of the number type's epsilon.
ROUNDING_LEVEL = 1000.0
#: The squared growth of the residual beyond which a Broyden step is taken back.
GROWTH = 4.0


class PicardMethod:
    """``z <- F(z)``."""

    def propose(self, image: Tensor) -> Tensor:
        return image

    def judge(self, argument: Tensor, image: Tensor, residual: Tensor, squared: Tensor) -> tuple[Tensor, Tensor]:
        """The image to go on from, and the squared residual norm that belongs to it."""
        return image, squared


class AndersonMethod:
    """Anderson acceleration, safeguarded."""

    def __init__(self, start: Tensor, method: Anderson):
        batch, length = start.shape
        window = max(2, method.window)
        self.method, self.window = method, window
        self.images = start.new_zeros(batch, window, length)
        self.residuals = start.new_zeros(batch, window, length)
        self.gram = torch.eye(window, dtype=torch.float64, device=start.device).repeat(batch, 1, 1)
        #: Which slots of each sample hold a pair.
        self.kept = torch.zeros(batch, window, dtype=torch.bool, device=start.device)
        self.count = 0
        self.newest = 0
        self.accelerated = torch.zeros(batch, dtype=torch.bool, device=start.device)
        self.squared = start.new_full((batch,), float("inf"))

    def propose(self, image: Tensor) -> Tensor:
        if self.count < 2:
            return image
        weights, usable = self._weights()
        filled = min(self.count, self.window)
        combined = torch.bmm(weights[:, None, :filled].to(image.dtype), self.images[:, :filled])[:, 0]
        if self.method.mixing != 1.0:
            back = torch.bmm(weights[:, None, :filled].to(image.dtype), self.residuals[:, :filled])[:, 0]
            combined = combined + (self.method.mixing - 1.0) * back
        # Positive where the iteration was positive. The least entry also says whether all are numbers.
        least = combined.amin(1)
        stays = (least > 0) | (~(image.amin(1) > 0) & torch.isfinite(least))
        self.accelerated = usable & stays
        return torch.where(self.accelerated[:, None], combined, image)

    def _weights(self) -> tuple[Tensor, Tensor]:
        """``(G + ridge diag G) w = 1`` over the pairs that each sample keeps, divided by the sum."""
        both = self.kept[:, :, None] & self.kept[:, None, :]
        diagonal = self.gram.diagonal(dim1=1, dim2=2)
        scale = torch.where(self.kept & (diagonal > 0), diagonal, 1.0).rsqrt()
        scaled = torch.where(both, self.gram * scale[:, :, None] * scale[:, None, :], 0.0)
        scaled.diagonal(dim1=1, dim2=2).add_(torch.where(self.kept, self.method.ridge, 1.0))
        factor, failed = torch.linalg.cholesky_ex(scaled)
        rhs = torch.where(self.kept, scale, 0.0)[:, :, None]
        weights = torch.cholesky_solve(rhs, factor)[:, :, 0] * scale
        total = weights.sum(1, keepdim=True)
        usable = (failed == 0) & (self.kept.sum(1) >= 2) & torch.isfinite(total[:, 0]) & (total[:, 0] != 0)
        return torch.where(usable[:, None], weights / total, 0.0), usable

    def judge(self, argument: Tensor, image: Tensor, residual: Tensor, squared: Tensor) -> tuple[Tensor, Tensor]:
        slot = self.count % self.window
        rejected = self.accelerated & ~(squared < self.squared)
        if bool(rejected.any()):
            # Back to the best pair, which is the newest one; the history begins there.
            last = self.newest
            image = torch.where(rejected[:, None], self.images[:, last], image)
            residual = torch.where(rejected[:, None], self.residuals[:, last], residual)
            squared = torch.where(rejected, self.squared, squared)
            self.kept &= ~rejected[:, None]
        self.images[:, slot], self.residuals[:, slot] = image, residual
        self.kept[:, slot] = True
        filled = min(self.count + 1, self.window)
        products = torch.bmm(self.residuals[:, :filled], residual[:, :, None])[:, :, 0].to(self.gram.dtype)
        self.gram[:, slot, :filled] = products
        self.gram[:, :filled, slot] = products
        self.count, self.newest, self.squared = self.count + 1, slot, squared
        self.accelerated = torch.zeros_like(rejected)
        return image, squared


class BroydenMethod:
    """Broyden's good method with limited memory: the inverse Jacobian of ``F(z) - z`` is ``-I + sum u v'``."""

    def __init__(self, start: Tensor, method: Broyden):
        batch, length = start.shape
        self.memory = max(1, method.memory)
        self.left = start.new_zeros(batch, self.memory, length)
        self.right = start.new_zeros(batch, self.memory, length)
        self.updates = 0
        self.last: tuple[Tensor, Tensor, Tensor] | None = None
        self.squared = start.new_full((batch,), float("inf"))
        self.accelerated = torch.zeros(batch, dtype=torch.bool, device=start.device)

    def _update_product(self, first: Tensor, second: Tensor, vector: Tensor) -> Tensor:
        """``sum first_i <second_i, vector>``."""
        inner = torch.bmm(second[:, : self.updates], vector[:, :, None])
        return torch.bmm(inner.mT, first[:, : self.updates])[:, 0]

    def propose(self, image: Tensor) -> Tensor:
        if self.updates == 0 or self.last is None:
            return image
        return image - self._update_product(self.left, self.right, self.last[2])

    def judge(self, argument: Tensor, image: Tensor, residual: Tensor, squared: Tensor) -> tuple[Tensor, Tensor]:
        if self.last is not None:
            rejected = self.accelerated & ~(squared <= GROWTH * self.squared)
            if bool(rejected.any()):
                back = rejected[:, None]
                old_argument, old_image, old_residual = self.last
                argument = torch.where(back, old_argument, argument)
                image = torch.where(back, old_image, image)
                residual = torch.where(back, old_residual, residual)
                squared = torch.where(rejected, self.squared, squared)
                self.left.masked_fill_(rejected[:, None, None], 0.0)
                self.right.masked_fill_(rejected[:, None, None], 0.0)
            self._update(argument - self.last[0], residual - self.last[2])
        self.accelerated = self.left[:, : self.updates].abs().amax((1, 2)) > 0 if self.updates else self.accelerated & False
        self.last, self.squared = (argument, image, residual), squared
        return image, squared

    def _update(self, moved: Tensor, changed: Tensor) -> None:
        if self.updates == self.memory:
            self.updates = 0
        u = self._update_product(self.left, self.right, changed) - changed
        v = self._update_product(self.right, self.left, moved) - moved
        denominator, size = (moved * u).sum(1, keepdim=True), (moved * moved).sum(1, keepdim=True)
        usable = denominator.abs() > 1e-8 * size
        self.left[:, self.updates] = torch.where(usable, (moved - u) / torch.where(usable, denominator, 1.0), 0.0)
        self.right[:, self.updates] = torch.where(usable, v, 0.0)
        self.updates += 1


def method_of(solver: Solver, start: Tensor):
    """The method of a solver for a batch of starts."""
    if isinstance(solver, Picard):
        return PicardMethod()
    if isinstance(solver, Anderson):
        return AndersonMethod(start, solver)
    if isinstance(solver, Broyden):
        return BroydenMethod(start, solver)
    raise ValueError(f"{solver.name} needs to know the weights: use picard, anderson or broyden for a map of your own")


def iterate(
    step: Callable[[Tensor], Tensor], start: Tensor, solver: Solver, relative: bool, tol: float, max_iter: int
) -> tuple[Tensor, Tensor]:
    """Solves ``z = step(z)`` for each row; the solutions, and a report per row (see `subdeq.torch.SolveInfo`)."""
    method, batch = method_of(solver, start), start.shape[0]
    reports = start.new_full((batch, 4), float("inf"), dtype=torch.float64)
    if batch == 0:
        return start.clone(), reports
    answer, image = start, start
    active = torch.ones(batch, dtype=torch.bool, device=start.device)
    best = start.new_full((batch,), float("inf"))
    since = torch.zeros(batch, dtype=torch.int64, device=start.device)
    rounding = (ROUNDING_LEVEL * torch.finfo(start.dtype).eps) ** 2
    for iteration in range(1, max_iter + 1):
        argument = method.propose(image)
        image = step(argument)
        residual = image - argument
        squared = torch.linalg.vector_norm(residual, dim=1).square()
        image, squared = method.judge(argument, image, residual, squared)
        size = torch.linalg.vector_norm(image, dim=1)
        # In squares, so that no root is taken in vain.
        scale = (1e-5 + size).square() if relative else torch.ones_like(size)
        measured = squared / scale
        finite = torch.isfinite(measured)
        converged = measured <= tol * tol
        since = torch.where(measured < best, 0, since + 1)
        best = torch.minimum(best, measured.nan_to_num(float("inf")))
        unit = 1.0 if relative else size.square().clamp_min(1.0)
        ended = converged | ~finite
        if iteration > PATIENCE:
            ended = ended | ((since >= PATIENCE) & (best <= rounding * unit))
        if iteration == max_iter:
            ended = torch.ones_like(ended)
        ended = ended & active
        if bool(ended.any()):
            code = torch.where(converged, 0.0, torch.where(finite, 2.0 if iteration < max_iter else 1.0, 3.0))
            row = torch.stack([
                code.double(), torch.full_like(code, iteration, dtype=torch.float64), measured.double().sqrt(),
                torch.full_like(code, float("inf"), dtype=torch.float64),
            ], 1)
            reports = torch.where(ended[:, None], row, reports)
            answer = torch.where(ended[:, None], image, answer)
            active = active & ~ended
            if not bool(active.any()):
                break
    return answer, reports
