"""fixed_point: a user's own function."""

import warnings

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
from torch import nn  # noqa: E402

import subdeq  # noqa: E402
from subdeq.torch import ConvergenceWarning, Equilibrium, fixed_point  # noqa: E402

F64 = torch.float64
SOLVERS = ["picard", "anderson", "broyden"]


def cell(W, y):
    return lambda z: torch.tanh(z @ W.T) + y


@pytest.mark.parametrize("solver", SOLVERS)
def test_gradcheck(solver):
    torch.manual_seed(0)
    W, y = (torch.randn(5, 5, dtype=F64) / 4).requires_grad_(), torch.randn(3, 5, dtype=F64, requires_grad=True)

    def solve(W, y):
        return fixed_point(
            lambda z, W, y: torch.tanh(z @ W.T) + y, torch.zeros(3, 5, dtype=F64), (W, y), solver=solver, tol=1e-13,
            max_iter=5000, on_failure="ignore",
        )[0]

    assert torch.autograd.gradcheck(solve, (W, y))


@pytest.mark.parametrize("solver", SOLVERS)
def test_the_engine_finds_the_same(solver):
    torch.manual_seed(0)
    layer = Equilibrium(12, map="subdeq-tanh", solver=solver, tol=1e-9, dtype=F64, max_iter=2000)
    y = torch.rand(6, 12, dtype=F64, requires_grad=True)
    step = lambda z: torch.tanh(z @ layer.weight.T) + y + 1.2
    z, info = fixed_point(step, torch.ones(6, 12, dtype=F64), solver=solver, tol=1e-9, max_iter=2000)
    engine = layer(y)
    assert torch.allclose(z, engine, atol=1e-7)
    if solver == "picard":
        assert info.iterations.tolist() == layer.info.iterations.tolist()
    else:
        assert abs(int(info.iterations.max()) - int(layer.info.iterations.max())) <= 3
    v = torch.randn_like(z)
    found, expected = (torch.autograd.grad(out, [y, layer.weight], v) for out in (z, engine))
    assert all(torch.allclose(a, b, atol=1e-6) for a, b in zip(found, expected))


def test_modules_and_images():
    torch.manual_seed(0)
    conv, y = nn.Conv2d(3, 3, 3, padding=1), torch.randn(2, 3, 6, 6)
    with torch.no_grad():
        conv.weight.mul_(0.5)
    z, info = fixed_point(lambda z: torch.relu(conv(z)) + y, torch.zeros_like(y), tol=1e-6)
    assert info.converged and torch.allclose(z, torch.relu(conv(z)) + y, atol=1e-4)
    z.sum().backward()
    assert conv.weight.grad.abs().sum() > 0 and conv.bias.grad.abs().sum() > 0


def test_samples_end_by_themselves():
    # z = a z + 1: the rate is a's.
    a = torch.tensor([[0.1], [0.5], [0.9]], dtype=F64)
    z, info = fixed_point(lambda z: a * z + 1, torch.zeros(3, 1, dtype=F64), solver="picard", tol=1e-9, max_iter=1000)
    assert torch.allclose(z, 1 / (1 - a), atol=1e-6)
    few, more, many = info.iterations.tolist()
    assert few < more < many
    alone, _ = fixed_point(lambda z: a[:1] * z + 1, torch.zeros(1, 1, dtype=F64), solver="picard", tol=1e-9, max_iter=1000)
    assert torch.equal(alone[0], z[0])


def test_outcomes_are_honest():
    y = torch.ones(2, 3)
    with pytest.warns(ConvergenceWarning, match="2 of 2 solves"):
        _, info = fixed_point(lambda z: 1.5 * z + y, torch.zeros(2, 3), solver="picard", max_iter=20)
    assert info.outcome == ["iteration-limit"] * 2
    with pytest.raises(subdeq.NotConverged):
        fixed_point(lambda z: 1.5 * z + y, torch.zeros(2, 3), solver="picard", max_iter=20, on_failure="raise")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        _, info = fixed_point(lambda z: z * z * 9 + 5, torch.ones(1, 3), solver="picard", on_failure="ignore", max_iter=100)
    assert info.outcome == ["not-finite"]
    _, info = fixed_point(torch.cos, torch.zeros(1, 3), solver="picard", tol=0.0, on_failure="ignore", max_iter=5000)
    assert info.outcome in (["stagnated"], ["converged"]) and float(info.residual[0]) < 1e-6


def test_a_failed_backward_solve_raises():
    w = torch.tensor(3.0, requires_grad=True)
    # Broyden finds the fixed point of a map that expands; plain iteration of its adjoint diverges.
    z, info = fixed_point(
        lambda z: -w * z + 1, torch.zeros(1, 2), solver="broyden", backward_solver="picard", tol=1e-5, backward_max_iter=10_000
    )
    assert info.converged
    with pytest.raises(subdeq.NotConverged, match="there is no gradient"):
        z.sum().backward()
    assert w.grad is None


def test_other_gradients():
    torch.manual_seed(0)
    W, y = (torch.randn(4, 4, dtype=F64) / 4).requires_grad_(), torch.randn(2, 4, dtype=F64)
    exactly = fixed_point(cell(W, y), torch.zeros(2, 4, dtype=F64), tol=1e-12)[0]
    many = fixed_point(cell(W, y), torch.zeros(2, 4, dtype=F64), tol=1e-12, gradient="phantom", steps=60)[0]
    far = fixed_point(cell(W, y), torch.zeros(2, 4, dtype=F64), gradient="unrolled", steps=80)
    reference = torch.autograd.grad(exactly.sum(), W)[0]
    for z in (many, far[0]):
        assert torch.allclose(torch.autograd.grad(z.sum(), W)[0], reference, atol=1e-8)
    assert far[1].iterations.tolist() == [80, 80] and far[1].converged


def test_no_gradient_where_none_is_asked_for():
    W = torch.zeros(3, 3, requires_grad=True)
    with torch.no_grad():
        assert not fixed_point(cell(W, 1.0), torch.zeros(2, 3))[0].requires_grad
    assert fixed_point(lambda z: z / 2 + 1, torch.zeros(0, 3))[0].shape == (0, 3)


def test_refusals_are_sentences():
    half = lambda z: z / 2
    for call, error, words in [
        (lambda: fixed_point(half, torch.zeros(2, 3), solver="newton"), ValueError, "no solver"),
        (lambda: fixed_point(half, torch.zeros(2, 3), solver="peaceman-rachford"), ValueError, "map of your own"),
        (lambda: fixed_point(half, torch.zeros(2, 3), stop="certified"), ValueError, "nothing is proved"),
        (lambda: fixed_point(half, torch.zeros(2, 3), tol=-1.0), ValueError, "tol"),
        (lambda: fixed_point(lambda z: z[:, :2], torch.zeros(2, 3)), ValueError, "must return states"),
        (lambda: fixed_point(half, torch.zeros(2, 3, dtype=torch.int64)), TypeError, "floating-point"),
        (lambda: fixed_point(half, torch.zeros(2, 3), f_tol=1e-3), TypeError, "f_tol"),
    ]:
        with pytest.raises(error, match=words):
            call()
