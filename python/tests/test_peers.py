"""Other people's layers with the same weights and inputs: the same fixed points to 1e-4, the same gradients to 1e-3."""

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402

from subdeq.torch import Equilibrium, fixed_point, load_mondeq  # noqa: E402


def close(found, expected, atol):
    return all(torch.allclose(a, b, atol=atol * (1 + float(b.abs().max()))) for a, b in zip(found, expected))


def test_torchdeq_finds_the_same():
    torchdeq = pytest.importorskip("torchdeq", reason="torchdeq is not installed")
    torch.manual_seed(0)
    layer = Equilibrium(20, map="subdeq-tanh", tol=1e-6, backward_tol=1e-6)
    y = torch.rand(8, 20, requires_grad=True)
    step = lambda z: torch.tanh(z @ layer.weight.T) + y + 1.2
    deq = torchdeq.get_deq(
        f_solver="anderson", b_solver="anderson", f_tol=1e-6, b_tol=1e-6, f_max_iter=100, b_max_iter=100, f_stop_mode="rel",
        b_stop_mode="rel", ift=True,
    )
    deq.train()
    theirs = deq(step, torch.ones(8, 20))[0][-1]
    own = fixed_point(step, torch.ones(8, 20), tol=1e-6)[0]
    v = torch.randn(8, 20)
    expected = torch.autograd.grad(theirs, [y, layer.weight], v)
    for z in (layer(y), own):
        assert torch.allclose(z, theirs, atol=1e-4)
        assert close(torch.autograd.grad(z, [y, layer.weight], v), expected, 1e-3)


class MonotoneLinear(nn.Module):
    """The equations of monotone_op_net's dense layer: ``z = relu(W z + U x)``, ``W = (1 - m) I - A'A + B - B'``."""

    def __init__(self, inputs, outputs, m):
        super().__init__()
        self.m = m
        self.U = nn.Linear(inputs, outputs)
        self.A, self.B = (nn.Linear(outputs, outputs, bias=False) for _ in range(2))

    def times(self, z):
        return (1 - self.m) * z - self.A(z) @ self.A.weight + self.B(z) - z @ self.B.weight


class MonotoneConv(nn.Module):
    """Those of its convolutional layer: circular, with normalised factors."""

    def __init__(self, inputs, outputs, m):
        super().__init__()
        self.m = m
        self.U = nn.Conv2d(inputs, outputs, 3, padding=1, padding_mode="circular")
        self.A, self.B = (nn.Conv2d(outputs, outputs, 3, bias=False) for _ in range(2))
        self.g, self.h = nn.Parameter(torch.tensor(0.8)), nn.Parameter(torch.tensor(1.3))

    def times(self, z):
        around = lambda x, n: F.pad(x, 4 * (n,), mode="circular")
        conv = lambda w, x: F.conv2d(around(x, 1), w)
        transposed = lambda w, x: conv(w.transpose(0, 1).flip(2, 3), x)
        A, B = self.A.weight / self.A.weight.norm(), self.h * self.B.weight / self.B.weight.norm()
        return (1 - self.m) * z - self.g * transposed(A, conv(A, z)) + conv(B, z) - transposed(B, z)


@pytest.mark.parametrize("images", [False, True])
def test_monotone_operator_networks_are_the_same(images):
    torch.manual_seed(0)
    m = 0.3
    public = (MonotoneConv if images else MonotoneLinear)(4, 6, m)
    x = torch.randn(2, 4, 6, 6) if images else torch.randn(3, 4)
    injection, layer = load_mondeq(public.state_dict(), m, tol=1e-6, backward_tol=1e-6, max_iter=2000)
    y = injection(x).detach().requires_grad_()
    assert torch.allclose(y, public.U(x), atol=1e-5)
    z = layer(y)
    reference = torch.zeros_like(z)
    step = lambda z: 0.8 * z + 0.2 * torch.relu(public.times(z) + y)
    with torch.no_grad():
        for _ in range(500):
            reference = step(reference)
    for _ in range(150):  # backpropagation through these is the gradient at their common value
        reference = step(reference)
    assert torch.allclose(z, reference, atol=1e-4)
    v = torch.randn_like(z)
    assert close(torch.autograd.grad(z, y, v), torch.autograd.grad(reference, y, v), 1e-3)
    assert layer.certify(**({"size": (6, 6)} if images else {})).proven
