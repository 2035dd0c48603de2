"""Methods of iteration, as small values."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import ClassVar, Optional, Union


@dataclass(frozen=True)
class Picard:
    """``z <- F(z)``."""

    name: ClassVar[str] = "picard"


@dataclass(frozen=True)
class Anderson:
    """Anderson acceleration, safeguarded: never worse than Picard's iteration, and positive where that is."""

    window: int = 5
    ridge: float = 1e-4
    mixing: float = 1.0
    name: ClassVar[str] = "anderson"


@dataclass(frozen=True)
class Broyden:
    """Broyden's method with limited memory."""

    memory: int = 20
    name: ClassVar[str] = "broyden"


@dataclass(frozen=True)
class PeacemanRachford:
    """Peaceman-Rachford splitting, for the monotone maps. Without a step, the layer chooses it from its weights."""

    step: Optional[float] = None
    name: ClassVar[str] = "peaceman-rachford"


@dataclass(frozen=True)
class ForwardBackward:
    """Forward-backward splitting, for the monotone maps. Without a step, the layer chooses it from its weights."""

    step: Optional[float] = None
    name: ClassVar[str] = "forward-backward"


Solver = Union[Picard, Anderson, Broyden, PeacemanRachford, ForwardBackward]
SOLVERS = {kind.name: kind for kind in (Picard, Anderson, Broyden, PeacemanRachford, ForwardBackward)}


def solver_of(solver: str | Solver) -> Solver:
    """The solver of a name, or the solver itself.

    >>> solver_of("anderson")
    Anderson(window=5, ridge=0.0001, mixing=1.0)
    >>> solver_of("newton")
    Traceback (most recent call last):
    ...
    ValueError: there is no solver 'newton'; known are picard, anderson, broyden, peaceman-rachford, forward-backward
    """
    if isinstance(solver, tuple(SOLVERS.values())):
        return solver
    if solver not in SOLVERS:
        raise ValueError(f"there is no solver {solver!r}; known are {', '.join(SOLVERS)}")
    return SOLVERS[solver]()


def spec_of(solver: str | Solver) -> dict:
    """A solver as the engine reads it."""
    value = solver_of(solver)
    return {"name": value.name, **asdict(value)}
