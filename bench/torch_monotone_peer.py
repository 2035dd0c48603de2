#!/usr/bin/env python3
"""PyTorch peer of the monotone layers: z = ReLU(W z + U x + b), W = (1 - m) I - A'A + B - B' (`monotone-product`) or
W = V - max(0, lambda - (1 - m)) I, lambda the largest eigenvalue of V's symmetric part (`monotone`), circular convolutions,
solved by Peaceman-Rachford splitting in the frequency domain, forward and adjoint.

Written as a strong PyTorch engineer would: batched real FFTs, one batched complex product per iteration with resolvents that are
inverted once per step, injection outside the loop, the residual looked at in every 4th iteration, TF32 allowed. Of `monotone`,
lambda comes from torch.linalg.eigvalsh, or with `--eigen power` from four steps of the power method a training step, from the last
step's vectors on: faster, but no bound, so that nothing is guaranteed.

  torch_monotone_peer.py --case mnist-conv|cifar-conv|tiny-conv [--model monotone [--eigen power]] [--step 1] [--repeats 50] [--device cpu]
Prints one JSON object in the fields of shared/peer/torch_peer.py.
"""
import argparse, json, resource, time
import numpy as np
import torch, torch.nn as nn, torch.nn.functional as F

CASES = {  # in_channels, side, hidden, pool, classes, batch: those of torch_peer.py
    "mnist-conv": (1, 28, 16, 4, 10, 256),
    "cifar-conv": (3, 32, 48, 8, 10, 128),
    "tiny-conv": (3, 64, 64, 8, 200, 64),
}


class Monotone(nn.Module):
    """What the parametrisations have in common; they have `weight`, the matrices of W."""

    def __init__(self, cin, side, channels, margin=0.02, step=1.0, tol=1e-3, max_iter=30):
        super().__init__()
        self.inject = nn.Conv2d(cin, channels, 3, padding=1)
        self.side, self.margin, self.step, self.tol, self.max_iter = side, margin, step, tol, max_iter
        self.forward_iters = self.backward_iters = 0

    def spectrum(self, kernel):
        """The convolution's matrix at each frequency: [frequencies, out, in]."""
        n = self.side
        padded = F.pad(kernel, (0, n - 3, 0, n - 3)).roll((-1, -1), (2, 3))
        return torch.fft.rfft2(padded).conj().flatten(2).permute(2, 0, 1)

    def times(self, m, z):
        """m z, frequency by frequency."""
        s = torch.fft.rfft2(z)
        shape = s.shape
        s = torch.bmm(m, s.flatten(2).permute(2, 1, 0))
        return torch.fft.irfft2(s.permute(2, 1, 0).reshape(shape), s=z.shape[2:])

    def split(self, resolvent, prox, constant):
        u = z = torch.zeros_like(constant)
        offset = self.times(resolvent, self.step * constant)
        for k in range(1, self.max_iter + 1):
            half = 2 * z - u
            u = 2 * (self.times(resolvent, half) + offset) - half
            new = prox(u)
            if k % 4 == 0 and (new - z).norm().item() < self.tol * new.norm().item():
                return new, k
            z = new
        return z, self.max_iter

    def forward(self, x):
        y, w, t = self.inject(x), self.weight(), self.step
        with torch.no_grad():
            resolvent = torch.linalg.inv((1 + t) * eye_like(w) - t * w)
            z, self.forward_iters = self.split(resolvent, torch.relu, y)
        z = torch.relu(self.times(w, z) + y)
        if torch.is_grad_enabled():
            active = z.detach() > 0

            def adjoint(g):
                # q = D (W' q + g), D the slopes 0 and 1; the gradient for the last application is W' q + g.
                back = resolvent.mH
                q, self.backward_iters = self.split(back, lambda u: torch.where(active, u, 0), g)
                return g + self.times(w.detach().mH, q)

            z.register_hook(adjoint)
        return z


def kernel(channels):
    bound = (9 * channels) ** -0.5
    return nn.Parameter(torch.empty(channels, channels, 3, 3).uniform_(-bound, bound))


def eye_like(m):
    return torch.eye(m.shape[1], device=m.device, dtype=m.dtype)


class Product(Monotone):
    def __init__(self, cin, side, channels, **of_all):
        super().__init__(cin, side, channels, **of_all)
        self.a, self.b = kernel(channels), kernel(channels)

    def weight(self):
        a, b = self.spectrum(self.a), self.spectrum(self.b)
        return (1 - self.margin) * eye_like(a) - a.mH @ a + b - b.mH


class Shifted(Monotone):
    def __init__(self, cin, side, channels, eigen="exact", **of_all):
        super().__init__(cin, side, channels, **of_all)
        self.v, self.eigen, self.vectors = kernel(channels), eigen, None

    def top(self, symmetric):
        """The largest eigenvalue of all frequencies' matrices."""
        if self.eigen == "exact":
            return torch.linalg.eigvalsh(symmetric)[:, -1].max()
        with torch.no_grad():
            # Moved, so that the largest eigenvalue is the largest in absolute value.
            moved = symmetric + torch.linalg.matrix_norm(symmetric, 1).max() * eye_like(symmetric)
            z = self.vectors if self.vectors is not None else torch.randn_like(symmetric[:, :, :1])
            for _ in range(4):
                z = F.normalize(moved @ z, dim=1)
            self.vectors = z
        return (z.mH @ symmetric @ z).real.max()

    def weight(self):
        v = self.spectrum(self.v)
        return v - F.relu(self.top((v + v.mH) / 2) - (1 - self.margin)) * eye_like(v)


def main():
    a = argparse.ArgumentParser()
    a.add_argument("--case", choices=CASES, default="cifar-conv")
    a.add_argument("--model", choices=("monotone-product", "monotone"), default="monotone-product")
    a.add_argument("--eigen", choices=("exact", "power"), default="exact", help="how `monotone` gets its largest eigenvalue")
    a.add_argument("--step", type=float, default=1.0, help="the splitting's step")
    a.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    a.add_argument("--batch", type=int)
    a.add_argument("--repeats", type=int, default=50)
    a.add_argument("--check", action="store_true", help="compare the gradient with finite differences instead, in f64")
    o = a.parse_args()
    if o.eigen == "power" and o.model != "monotone":
        a.error("only --model monotone has an eigenvalue")
    torch.manual_seed(0)
    if o.check:
        return check()
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    torch.backends.cudnn.benchmark = True
    cin, side, hidden, pool, classes, batch = CASES[o.case]
    batch = o.batch or batch
    layer = Product(cin, side, hidden, step=o.step) if o.model == "monotone-product" else Shifted(cin, side, hidden, o.eigen, step=o.step)
    net = nn.Sequential(layer, nn.BatchNorm2d(hidden), nn.AvgPool2d(pool), nn.Flatten(), nn.Linear(hidden * (side // pool) ** 2, classes)).to(o.device)
    opt = torch.optim.Adam(net.parameters(), lr=1e-3, weight_decay=1e-5)
    sync = torch.cuda.synchronize if o.device.startswith("cuda") else (lambda: None)
    x, y = torch.randn(batch, cin, side, side, device=o.device), torch.randint(0, classes, (batch,), device=o.device)

    def timed(f):
        times = []
        for k in range(3 + o.repeats):
            sync()
            t = time.perf_counter()
            f()
            sync()
            times.append(time.perf_counter() - t)
        return 1e3 * float(np.median(times[3:]))

    def step():
        opt.zero_grad()
        F.cross_entropy(net(x), y).backward()
        opt.step()

    train = timed(step)
    iters = layer.forward_iters, layer.backward_iters
    net.eval()
    with torch.no_grad():
        evaluation = timed(lambda: net(x))
    cuda = o.device.startswith("cuda")
    mem = torch.cuda.max_memory_allocated() / 2**20 if cuda else resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(json.dumps(dict(case=o.case, variant="tuned" if o.eigen == "exact" else "tuned, power method", model=o.model, device=o.device, batch=batch, train_ms=train, eval_ms=evaluation,
                          forward_iters=iters[0], backward_iters=iters[1], peak_mib=round(mem))))


def check():
    """The adjoint against finite differences, and the layer's W against a plain circular convolution."""
    torch.set_default_dtype(torch.float64)
    # Shifted far enough that the largest eigenvalue counts.
    check_gradients(Product(2, 6, 3, margin=0.3, tol=1e-13, max_iter=5000))
    layer = Shifted(2, 6, 3, margin=0.9, tol=1e-13, max_iter=5000)
    check_gradients(layer)
    z = torch.randn(2, 3, 6, 6)
    plain = F.conv2d(F.pad(z, (1, 1, 1, 1), mode="circular"), layer.v)
    assert torch.allclose(layer.times(layer.spectrum(layer.v), z), plain), "convolution"
    symmetric = (layer.weight() + layer.weight().mH) / 2
    assert abs(torch.linalg.eigvalsh(symmetric).max().item() - 0.1) < 1e-9, "shift"
    exact, layer.eigen = layer.top(symmetric), "power"
    for _ in range(300):
        found = layer.top(symmetric)
    assert abs(found - exact) < 1e-6, "power method"
    print("gradients hold")


def check_gradients(layer):
    x, v = torch.randn(2, 2, 6, 6), torch.randn(2, 3, 6, 6)
    loss = lambda: (layer(x) * v).sum()
    loss().backward()
    for p in layer.parameters():
        d = torch.randn_like(p)
        with torch.no_grad():
            p += 1e-6 * d
            up = loss()
            p -= 2e-6 * d
            down = loss()
            p += 1e-6 * d
        slope, expected = ((up - down) / 2e-6).item(), (p.grad * d).sum().item()
        assert abs(slope - expected) < 1e-5 * (1 + abs(expected)), (slope, expected)


if __name__ == "__main__":
    main()
