#!/usr/bin/env python3
"""Speed through Python: the layers of subdeq.torch against a PyTorch peer's, and fixed_point against torchdeq.

    python bench/python_bench.py layers --peer /path/to/torch_peer.py [--case mnist-dense|cifar-conv]
    python bench/python_bench.py overhead [--case mnist-dense|cifar-conv]
    python bench/python_bench.py fixed-point

`layers`: forward + backward of the equilibrium layer alone (injection given), same weights, same input, tolerance 1e-3 and at
most 30 iterations for both; the peer is the tuned variant (Picard, residual every 4th step, analytic adjoint, channels_last).
Runs alternate; medians. `overhead`: the same through PyTorch against the bare call of the extension with numpy arrays.
`fixed-point`: a torch function, our Anderson against torchdeq's, same tolerance (relative 1e-4 of the whole batch for torchdeq,
of every sample for ours). One JSON object per line.
"""

import argparse
import importlib.util
import json
import time

import numpy as np
import torch

import subdeq
from subdeq import _subdeq
from subdeq.torch import Equilibrium, EquilibriumConv2d, fixed_point

CASES = {"mnist-dense": (256, 87), "cifar-conv": (128, 48, 32, 32)}


def alternate(runs, repeats, warmup=3):
    """Median milliseconds of each of several functions, run in turn."""
    times = {name: [] for name in runs}
    for round in range(repeats + warmup):
        for name, run in runs.items():
            begin = time.perf_counter()
            run()
            if round >= warmup:
                times[name].append(1e3 * (time.perf_counter() - begin))
    return {name: (float(np.median(t)), float(np.min(t))) for name, t in times.items()}


def layer_of(case, **keywords):
    shape = CASES[case]
    kind = EquilibriumConv2d if len(shape) == 4 else Equilibrium
    options = dict(map="subdeq-tanh", tol=1e-3, max_iter=30, on_failure="ignore", **keywords)
    layer = kind(shape[1], **options)
    y = torch.rand(*shape)
    return layer, y.to(memory_format=torch.channels_last) if len(shape) == 4 else y


def step(layer, y, v):
    layer.zero_grad(set_to_none=True)
    y.grad = None
    layer(y).backward(v)


def layers(options):
    spec = importlib.util.spec_from_file_location("torch_peer", options.peer)
    peer = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(peer)
    for case in [options.case] if options.case else CASES:
        torch.manual_seed(0)
        layer, y = layer_of(case, solver=options.solver)
        conv = y.dim() == 4
        cell = peer.Cell(y.shape[1], 1, y.shape[1], conv, 1.2, False)
        if conv:
            cell.to(memory_format=torch.channels_last)
        cell.embed = lambda x: x  # the injection is given, as to our layer
        deq = peer.Equilibrium(cell, "tuned", tol=1e-3, max_iter=30)
        with torch.no_grad():
            cell.mix.weight.copy_(layer.weight)
        y.requires_grad_()
        v = torch.randn_like(y)

        def theirs():
            cell.mix.weight.grad = y.grad = None
            deq(y).backward(v)

        def ours():
            step(layer, y, v)

        theirs(), ours()
        gap = float((deq(y) - layer(y)).detach().abs().max())
        times = alternate({"subdeq": ours, "peer": theirs}, options.repeats)
        with torch.no_grad():
            forward = alternate({"subdeq": lambda: layer(y), "peer": lambda: deq(y)}, options.repeats)
        print(json.dumps({
            "bench": "layers", "case": case, "solver": options.solver, "ms": times, "forward_ms": forward,
            "ratio": times["peer"][0] / times["subdeq"][0], "iterations": float(layer.info.iterations.double().mean()),
            "peer_iterations": deq.forward_iters, "peer_backward": deq.backward_iters, "gap": gap,
        }))


def overhead(options):
    for case in [options.case] if options.case else CASES:
        torch.manual_seed(0)
        layer, y = layer_of(case, solver=options.solver)
        spec, weight = layer.spec.json, layer.weight.detach().numpy()
        flat = y.permute(0, 2, 3, 1).contiguous().numpy() if y.dim() == 4 else y.numpy()
        size = flat.shape[1:3] if y.dim() == 4 else (1, 1)
        z, gy, gw = np.empty_like(flat), np.empty_like(flat), np.empty_like(weight)
        v = np.random.default_rng(0).normal(size=flat.shape).astype(np.float32)
        reports = np.empty((len(flat), 4))

        def bare():
            _subdeq.solve_f32(spec, size, [weight], flat, z, reports)
            _subdeq.pull_f32(spec, size, [weight], flat, z, v, gy, [gw], reports)

        y.requires_grad_()
        arriving = torch.from_numpy(v)
        arriving = arriving.permute(0, 3, 1, 2) if y.dim() == 4 else arriving
        times = alternate({"torch": lambda: step(layer, y, arriving), "bare": bare}, options.repeats)
        difference = times["torch"][0] - times["bare"][0]
        print(json.dumps({
            "bench": "overhead", "case": case, "ms": times, "overhead_us": 1e3 * difference,
            "overhead_percent": 100 * difference / times["bare"][0],
        }))


def fixed_points(options):
    from torchdeq import get_deq

    for batch, width in [(64, 128), (256, 87)]:
        torch.manual_seed(0)
        W = (torch.randn(width, width) / width**0.5 * 0.8).requires_grad_()
        y = torch.randn(batch, width)
        f = lambda z: torch.tanh(z @ W.T) + y
        z0 = torch.zeros(batch, width)
        for solver in ("anderson", "broyden", "picard"):
            name = {"picard": "fixed_point_iter"}.get(solver, solver)
            deq = get_deq(
                f_solver=name, b_solver=name, f_tol=1e-4, b_tol=1e-4, f_max_iter=60, b_max_iter=60, f_stop_mode="rel",
                b_stop_mode="rel", ift=True,
            )
            deq.train()
            v = torch.randn(batch, width)

            def theirs():
                W.grad = None
                deq(f, z0)[0][-1].backward(v)

            def ours():
                W.grad = None
                fixed_point(f, z0, solver=solver, tol=1e-4, max_iter=60, on_failure="ignore")[0].backward(v)

            times = alternate({"subdeq": ours, "torchdeq": theirs}, options.repeats)
            z, info = fixed_point(f, z0, solver=solver, tol=1e-4, max_iter=60)
            other = deq(f, z0)
            print(json.dumps({
                "bench": "fixed-point", "solver": solver, "batch": batch, "width": width, "ms": times,
                "ratio": times["torchdeq"][0] / times["subdeq"][0], "iterations": float(info.iterations.double().mean()),
                "residual": float((f(z) - z).norm().detach() / z.norm().detach()),
                "torchdeq_iterations": float(other[1]["nstep"].double().mean()),
                "torchdeq_residual": float((f(other[0][-1]) - other[0][-1]).norm().detach() / z.norm().detach()),
            }))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("job", choices=["layers", "overhead", "fixed-point"])
    parser.add_argument("--peer", help="the file of the PyTorch peer (its classes Cell and Equilibrium)")
    parser.add_argument("--case", choices=CASES)
    parser.add_argument("--solver", default="picard", help="ours; the peer is Picard")
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--threads", type=int, default=0)
    options = parser.parse_args()
    if options.threads:
        torch.set_num_threads(options.threads)
        subdeq.set_num_threads(options.threads)
    {"layers": layers, "overhead": overhead, "fixed-point": fixed_points}[options.job](options)


if __name__ == "__main__":
    main()
