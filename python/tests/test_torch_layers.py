"""The layers of subdeq.torch."""

import copy
import io
import threading
import warnings

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
from torch import nn  # noqa: E402

import subdeq  # noqa: E402
from subdeq.torch import ConvergenceWarning, Equilibrium, EquilibriumConv2d, GraphPropagation  # noqa: E402
from subdeq.torch import ops  # noqa: E402

F64 = torch.float64
EXACT = dict(tol=1e-13, stop="absolute", max_iter=20_000, backward_tol=1e-13, on_failure="ignore")
#: Of a monotone map whose plain iteration, damped, is to converge in a test's time.
MARGIN = 0.5
EDGES = torch.tensor([[0, 1, 2, 3, 0], [1, 2, 3, 4, 2]])


def exact(kind, *args, map, **keywords):
    torch.manual_seed(1)
    solver = "peaceman-rachford" if map.startswith("mon") else "picard"
    return kind(*args, map=map, solver=solver, dtype=F64, **{**EXACT, **keywords})


def injections(layer, *shape):
    torch.manual_seed(2)
    return (torch.rand(*shape, dtype=F64) + 0.1).requires_grad_()


@pytest.mark.parametrize("map", subdeq.MAPS)
def test_gradients_of_dense_layers(map):
    layer = exact(Equilibrium, 4, map=map)
    y = injections(layer, 2, 4 * layer.spec.injections)
    check = lambda y, *_: layer(y)
    assert torch.autograd.gradcheck(check, (y, *layer.parameters()), atol=1e-5)
    assert all(p.grad is not None for p in _backward(layer, y))


@pytest.mark.parametrize("map", subdeq.MAPS)
def test_gradients_of_convolutional_layers(map):
    layer = exact(EquilibriumConv2d, 2, map=map)
    y = injections(layer, 1, 2 * layer.spec.injections, 5, 5)
    assert torch.autograd.gradcheck(lambda y, *_: layer(y), (y, *layer.parameters()), atol=1e-5)


@pytest.mark.parametrize("map", subdeq.GRAPH_MAPS)
@pytest.mark.parametrize("solver", ["picard", "anderson"])
def test_gradients_of_propagations(map, solver):
    layer = GraphPropagation(EDGES, 5, map=map, solver=solver, tol=1e-13, max_iter=5000, dtype=F64, on_failure="ignore")
    assert torch.autograd.gradcheck(layer, (injections(layer, 5, 3),), atol=1e-5)


@pytest.mark.parametrize("gradient", ["phantom", "unrolled"])
def test_other_gradients(gradient):
    layer = exact(Equilibrium, 4, map="subdeq-tanh", gradient=gradient, steps=3, backward_tol=None)
    y = injections(layer, 2, 4)
    if gradient == "unrolled":
        assert torch.autograd.gradcheck(lambda y, *_: layer(y), (y, *layer.parameters()), atol=1e-5)
        return
    z = layer(y)
    v = torch.randn_like(z)
    at = z.detach().requires_grad_()
    image = torch.tanh(at @ layer.weight.T) + y + 1.2
    g = v
    for _ in range(2):
        g = v + torch.autograd.grad(image, at, g, retain_graph=True)[0]
    expected = torch.autograd.grad(image, [y, layer.weight], g)
    found = torch.autograd.grad(z, [y, layer.weight], v)
    assert all(torch.allclose(a, b, atol=1e-9) for a, b in zip(expected, found))


def _backward(layer, y):
    layer.zero_grad()
    layer(y).sum().backward()
    return list(layer.parameters())


def plain(map, layer, y):
    """The equation in plain PyTorch."""
    conv = y.dim() == 4
    times = lambda w, z: nn.functional.conv2d(z, w, padding=1) if conv else z @ w.T
    if map == "subdeq-tanh":
        return lambda z: torch.tanh(times(layer.weight, z)) + y + 1.2
    if map == "split-sign":
        s = nn.functional.softsign
        return lambda z: s(times(layer.weight.relu(), z)) - s(times((-layer.weight).relu(), z)) + y + 1.2
    if map == "excitatory":
        return lambda z: torch.tanh(times(layer.weight.abs(), z)) + y + 1.2
    if map == "subdeq-normalized-tanh":
        norm = lambda z: z / z.abs().amax(2 if conv else 1, keepdim=True)
        return lambda z: norm(torch.tanh(times(layer.weight, z)) + y + 1.603)
    A = layer.a
    B = layer.b * A if map == "monotone-tied" else layer.b
    W = (1 - MARGIN) * torch.eye(len(A), dtype=A.dtype) - A.T @ A + B - B.T
    return lambda z: 0.9 * z + 0.1 * torch.relu(z @ W.T + y)


PRODUCTS = ["monotone-product", "monotone-tied"]


@pytest.mark.parametrize("map", ["subdeq-tanh", "split-sign", "excitatory", "subdeq-normalized-tanh", *PRODUCTS])
@pytest.mark.parametrize("images", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, F64])
def test_a_long_iteration_in_pytorch_says_the_same(map, images, dtype):
    if images and map in PRODUCTS:
        pytest.skip("its plain iteration is on tori of 5x5 kernels: compared in test_peers")
    torch.manual_seed(3)
    kind, shape = (EquilibriumConv2d, (3, 4, 6, 5)) if images else (Equilibrium, (3, 8))
    margin = MARGIN if map in PRODUCTS else None
    layer = kind(
        shape[1], map=map, margin=margin, tol=1e-6, backward_tol=1e-6, max_iter=5000, dtype=dtype, on_failure="ignore"
    )
    y = torch.rand(*shape, dtype=dtype).requires_grad_()
    z, step = layer(y), plain(map, layer, y)
    reference = torch.ones_like(z)
    for _ in range(600):
        reference = step(reference)
    atol = 1e-4
    assert torch.allclose(z, reference, atol=atol), (z - reference).abs().max()
    v = torch.randn_like(z)
    wanted = [y, *layer.parameters()]
    found, expected = torch.autograd.grad(z, wanted, v), torch.autograd.grad(reference, wanted, v)
    for a, b in zip(found, expected):
        assert torch.allclose(a, b, atol=1e-3 * (1 + float(b.detach().abs().max())))


def test_operators_pass_pytorchs_own_checks():
    layer = Equilibrium(4, dtype=F64)
    args = (torch.rand(3, 4, dtype=F64, requires_grad=True), list(layer.parameters()), layer.spec.json, 1, "warn")
    torch.library.opcheck(ops.solve_op, args)
    z = layer(args[0]).detach()
    torch.library.opcheck(ops.pull_op, (args[0].detach(), z, torch.ones_like(z), [p.detach() for p in args[1]], args[2], "warn"))
    graph = GraphPropagation(EDGES, 5, dtype=F64)
    f = torch.rand(5, 2, dtype=F64, requires_grad=True)
    torch.library.opcheck(ops.propagate, (f, graph.starts, graph.columns, graph.values, graph.spec, "warn"))


@pytest.mark.parametrize("images", [False, True])
def test_compiled_layers_are_the_layers(images):
    torch.manual_seed(0)
    kind, shape = (EquilibriumConv2d, (2, 3, 6, 6)) if images else (Equilibrium, (5, 3))
    net = nn.Sequential(nn.ReLU(), kind(3), nn.Tanh())
    compiled = torch.compile(net, backend="aot_eager", fullgraph=True)
    y = torch.randn(*shape, requires_grad=True)
    results = []
    for run in (net, compiled):
        z = run(y)
        gradients = torch.autograd.grad(z.sum(), [y, net[1].weight])
        results.append((z, *gradients))
    assert all(torch.equal(a, b) for a, b in zip(*results))
    graph = torch.compile(GraphPropagation(EDGES, 5), backend="aot_eager", fullgraph=True)
    f = torch.rand(5, 2, requires_grad=True)
    graph(f).sum().backward()
    assert f.grad is not None


def test_contiguous_tensors_are_not_copied(monkeypatch):
    seen = {}

    def spy(spec, size, parameters, y, z, reports):
        seen.update(y=y.ctypes.data, p=parameters[0].ctypes.data, z=z.ctypes.data)
        return original(spec, size, parameters, y, z, reports)

    original = ops._SOLVE[torch.float32]
    monkeypatch.setitem(ops._SOLVE, torch.float32, spy)
    layer, y = Equilibrium(4), torch.rand(3, 4)
    z = layer(y)
    assert seen == {"y": y.data_ptr(), "p": layer.weight.data_ptr(), "z": z.data_ptr()}
    conv, images = EquilibriumConv2d(4), torch.rand(2, 4, 6, 6).to(memory_format=torch.channels_last)
    z = conv(images)
    assert seen == {"y": images.data_ptr(), "p": conv.weight.data_ptr(), "z": z.data_ptr()}
    assert z.is_contiguous(memory_format=torch.channels_last)


def test_layouts_shapes_and_empty_batches():
    torch.manual_seed(0)
    layer = Equilibrium(4)
    y = torch.rand(6, 4)
    z = layer(y)
    assert torch.equal(layer(y.t().contiguous().t()), z)
    assert torch.equal(layer(y.reshape(2, 3, 4)), z.reshape(2, 3, 4)) and torch.equal(layer(y[0]), z[0])
    assert torch.equal(layer(torch.cat([y, y], 1)[:, ::1][:, :4]), z)
    empty = torch.rand(0, 4, requires_grad=True)
    layer(empty).sum().backward()
    assert empty.grad.shape == (0, 4) and torch.equal(layer.weight.grad, torch.zeros(4, 4)) and layer.info.converged
    conv = EquilibriumConv2d(2)
    images = torch.rand(3, 2, 5, 4)
    assert torch.equal(conv(images), conv(images.to(memory_format=torch.channels_last)))
    assert conv(images[:0]).shape == (0, 2, 5, 4)
    conv(images.requires_grad_()).sum().backward()  # an expanded gradient


def test_a_samples_answer_does_not_depend_on_its_batch():
    torch.manual_seed(0)
    layer, y = Equilibrium(16), torch.rand(9, 16)
    assert torch.equal(layer(y)[4], layer(y[4:5])[0])


def test_refusals_are_sentences():
    layer = Equilibrium(4)
    for call, error, words in [
        (lambda: layer(torch.rand(2, 5)), ValueError, "last dimension must be 4"),
        (lambda: layer(torch.rand(2, 4, dtype=F64)), TypeError, "the parameters of torch.float32"),
        (lambda: layer(torch.rand(2, 4).half()), TypeError, "use float32"),
        (lambda: layer(torch.rand(2, 4, device="meta")), RuntimeError, "CUDA tensors in place are the next step"),
        (lambda: layer(torch.tensor([[0.0, float("nan"), 0, 0]])), ValueError, "entry 1 .* of the injection is NaN"),
        (lambda: Equilibrium(4, map="transformer"), ValueError, "known are"),
        (lambda: Equilibrium(4, solver="newton"), ValueError, "no solver"),
        (lambda: Equilibrium(4, tolerance=1e-3), TypeError, "tolerance"),
        (lambda: Equilibrium(4, solver="peaceman-rachford"), ValueError, "monotone maps only"),
        (lambda: Equilibrium(4, margin=0.1), ValueError, "no margin"),
        (lambda: Equilibrium(4, gradient="exact"), ValueError, "gradient must be"),
        (lambda: Equilibrium(4, steps=3), ValueError, "steps is for"),
        (lambda: Equilibrium(4, on_failure="cry"), ValueError, "on_failure must be"),
        (lambda: Equilibrium(0), ValueError, "0 units"),
        (lambda: EquilibriumConv2d(2)(torch.rand(2, 3, 4, 4)), ValueError, "batch x 2 x height x width"),
        (lambda: EquilibriumConv2d(2).certify(), ValueError, "size"),
        (lambda: EquilibriumConv2d(2, kernel_size=5), ValueError, "3x3"),
        (lambda: EquilibriumConv2d(2, map="monotone", kernel_size=2), ValueError, "1x1, 3x3 or 5x5"),
        (lambda: EquilibriumConv2d(2, map="monotone-product", padding="zero"), ValueError, "circular"),
        (lambda: GraphPropagation(EDGES, 3), ValueError, "3 nodes"),
        (lambda: GraphPropagation(EDGES, 5)(torch.rand(4, 2)), ValueError, "5 nodes"),
        (lambda: GraphPropagation(EDGES, 5)(torch.full((5, 2), float("nan"))), ValueError, "finite"),
    ]:
        with pytest.raises(error, match=words):
            call()
    with torch.no_grad():
        layer.weight[0, 0] = float("nan")
    with pytest.raises(ValueError, match="entry 0 of the parameter `weight`"):
        layer(torch.rand(2, 4))


def test_failed_solves_warn_once_or_raise():
    y = torch.rand(3, 4)
    quick = dict(solver="picard", max_iter=1, tol=1e-9, start=37.0)
    layer = Equilibrium(4, **quick)
    with pytest.warns(ConvergenceWarning, match="3 of 3 solves"):
        layer(y)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        layer(y)
        Equilibrium(4, on_failure="ignore", **quick)(y)
    assert layer.info.outcome == ["iteration-limit"] * 3 and not layer.info.converged
    with pytest.raises(subdeq.NotConverged):
        Equilibrium(4, on_failure="raise", **quick)(y)


def test_gradients_of_a_failed_backward_solve_are_never_zeros():
    torch.manual_seed(0)
    layer = Equilibrium(3, map="monotone-product", margin=0.1, backward_solver="picard", backward_max_iter=100_000)
    with torch.no_grad():
        layer.a.copy_(5 * torch.eye(3))
    y = torch.ones(2, 3, requires_grad=True)
    z = layer(y - 0.5 + 1)
    with pytest.raises(subdeq.NotConverged, match="adjoint solves"):
        z.sum().backward()
    assert y.grad is None
    slow = Equilibrium(3, backward_solver="picard", backward_max_iter=1, backward_tol=1e-9, on_failure="raise")
    with pytest.raises(subdeq.NotConverged, match="adjoint solves"):
        slow(y).sum().backward()
    with pytest.raises(ValueError, match="gradient that arrives .* is inf"):
        (layer(y) * float("inf")).sum().backward()


def test_earlier_batches_get_their_gradients():
    torch.manual_seed(0)
    layer = exact(Equilibrium, 5, map="split-sign")
    a, b = injections(layer, 3, 5), torch.rand(2, 5, dtype=F64)
    alone = torch.autograd.grad(layer(a).sum(), [a, layer.weight])
    za = layer(a)
    layer(b)
    twice = torch.autograd.grad(za.sum() + 0 * layer(layer(b)).sum(), [a, layer.weight])
    assert all(torch.allclose(x, y) for x, y in zip(alone, twice))
    with pytest.raises(RuntimeError):
        g = torch.autograd.grad(layer(a).sum(), a, create_graph=True)[0]
        g.sum().backward()


def test_bounds_are_certified():
    torch.manual_seed(0)
    layer, exactly = Equilibrium(6, stop="certified", tol=1e-3), exact(Equilibrium, 6, map="split-sign")
    exactly.load_state_dict(layer.state_dict())
    y = torch.rand(4, 6)
    z, reference = layer(y).double(), exactly(y.double())
    assert layer.info.converged and bool((layer.info.error_bound <= 1e-3).all())
    assert float((z.log() - reference.log()).detach().abs().max()) <= float(layer.info.error_bound.max())
    with pytest.raises(subdeq.NoCertificate):
        unproven = Equilibrium(6, map="subdeq-tanh", stop="certified")
        with torch.no_grad():
            unproven.weight.mul_(10)
        unproven(y)


def test_certificates_are_about_the_present_weights():
    layer = Equilibrium(2, map="subdeq-tanh")
    with torch.no_grad():
        layer.weight.copy_(torch.tensor([[1.0, -1.0], [-1.0, 1.0]]))
    assert layer.certify().verdict == "refuted"
    assert layer.certify(injection=torch.tensor([9.0, 0.0])).inputs == "for this input"
    with torch.no_grad():
        layer.weight.mul_(0.3)
    certificate = layer.certify()
    assert certificate.proven
    certificate.recheck(layer.effective_weights()[0])
    conv = EquilibriumConv2d(2)
    assert conv.certify(size=(4, 5)).proven and conv.certify(injection=torch.rand(2, 4, 4)).proven
    assert EquilibriumConv2d(2, map="monotone").certify(size=(6, 6)).proven


def test_modules_are_ordinary():
    torch.manual_seed(0)
    layer, y = Equilibrium(5, map="gains"), torch.rand(3, 5)
    z = layer(y)
    assert [name for name, _ in layer.named_parameters()] == ["gain", "weight"]
    assert torch.equal(copy.deepcopy(layer)(y), z)
    file = io.BytesIO()
    torch.save(layer, file)
    file.seek(0)
    assert torch.equal(torch.load(file, weights_only=False)(y), z)
    other = Equilibrium(5, map="gains")
    other.load_state_dict(layer.state_dict())
    assert torch.equal(other(y), z)
    assert torch.allclose(layer.double()(y.double()).float(), z, atol=1e-2)
    assert "softsign" in repr(layer)
    script = nn.Sequential(nn.Linear(3, 5), nn.ReLU(), Equilibrium(5))
    replicas = [copy.copy(script[2]) for _ in range(2)]
    assert all(torch.equal(replica(y), script[2](y)) for replica in replicas)


def test_an_optimiser_trains_it():
    torch.manual_seed(0)
    for map in ["split-sign", "monotone"]:
        net = nn.Sequential(nn.Linear(2, 16), nn.ReLU(), Equilibrium(16, map=map), nn.Linear(16, 2))
        x = torch.randn(256, 2)
        label = (x[:, 0] * x[:, 1] > 0).long()
        optimiser = torch.optim.Adam(net.parameters(), 0.02)
        for _ in range(120):
            optimiser.zero_grad()
            loss = nn.functional.cross_entropy(net(x), label)
            loss.backward()
            optimiser.step()
        assert float(loss.detach()) < 0.2 and net[2].certify().proven


def test_threads_use_one_layer_at_once():
    torch.manual_seed(0)
    layer = Equilibrium(20)
    batches = [torch.rand(50, 20) for _ in range(4)]

    def gradient(y):
        y = y.clone().requires_grad_()
        return torch.autograd.grad(layer(y).square().sum(), y)[0]

    expected = [gradient(y) for y in batches]
    found = [None] * 4

    def work(k):
        for _ in range(10):
            found[k] = gradient(batches[k])

    threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(torch.equal(a, b) for a, b in zip(found, expected))


def test_propagation_is_that_of_dense_matrices():
    torch.manual_seed(0)
    layer, f = GraphPropagation(EDGES, 5, dtype=F64, tol=1e-12), torch.rand(5, 3, dtype=F64)
    A = torch.eye(5, dtype=F64)
    A[EDGES[0], EDGES[1]] = A[EDGES[1], EDGES[0]] = 1.0
    root = A.sum(1).rsqrt()
    A = A * root[:, None] * root
    z = layer(f)
    assert torch.allclose(z, torch.tanh(0.9 * A @ z) + 0.1 * f + 1.2, atol=1e-6)
    assert layer.certify().proven and layer.info.converged
    assert torch.equal(copy.deepcopy(layer)(f), z)


def test_arrays_of_numpy_are_accepted_read_only():
    array = np.random.default_rng(0).uniform(size=(3, 4)).astype(np.float32)
    y = torch.from_numpy(array)
    assert Equilibrium(4)(y).shape == (3, 4)
