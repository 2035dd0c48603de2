#!/usr/bin/env python3
"""Train MNIST with an ordinary PyTorch loop around an equilibrium layer, and print what is proved about it.

    python python/examples/mnist.py --data DIR            # the four IDX files of MNIST, .gz
    python python/examples/mnist.py                       # scikit-learn's small digits, where there is no MNIST

Nothing here is special but the line that makes the layer: parameters, optimiser, loss and loop are PyTorch's.
"""

import argparse
import gzip
import time
from pathlib import Path

import numpy as np
import torch
from torch import nn

from subdeq.torch import Equilibrium

# %% The data ------------------------------------------------------------------------------------------------------------


def idx(path):
    """An IDX file: a header that says its shape, then bytes."""
    raw = gzip.decompress(path.read_bytes())
    shape = [int.from_bytes(raw[4 + 4 * i : 8 + 4 * i], "big") for i in range(raw[3])]
    return np.frombuffer(raw, np.uint8, offset=4 + 4 * raw[3]).reshape(shape)


def mnist(folder):
    part = lambda name: (idx(folder / f"{name}-images-idx3-ubyte.gz"), idx(folder / f"{name}-labels-idx1-ubyte.gz"))
    return *part("train"), *part("t10k")


def small_digits():
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    digits = load_digits()
    images = (digits.images * (255 / 16)).astype(np.uint8)
    x, xt, y, yt = train_test_split(images, digits.target, test_size=0.25, random_state=0)
    return x, y, xt, yt


def tensors(images, labels):
    x = torch.tensor(images, dtype=torch.float32).flatten(1).div_(255)
    return (x - 0.1307) / 0.3081, torch.tensor(labels.astype(np.int64))


# %% The network: injection, equilibrium, batch norm, classes ------------------------------------------------------------


def network(pixels, hidden):
    return nn.Sequential(
        nn.Linear(pixels, hidden),
        nn.ReLU(),                                   # the injection must be >= 0 for the proof
        Equilibrium(hidden, map="split-sign"),       # z = s(W+ z) - s(W- z) + y + 1.2: one solution for every W
        nn.BatchNorm1d(hidden),
        nn.Linear(hidden, 10),
    )


# %% The loop ------------------------------------------------------------------------------------------------------------


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data", type=Path, help="folder of the MNIST files; default: scikit-learn's small digits")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--hidden", type=int, default=87)
    parser.add_argument("--batch", type=int, default=128)
    options = parser.parse_args()
    images, labels, test_images, test_labels = mnist(options.data) if options.data else small_digits()
    x, y = tensors(images, labels)
    xt, yt = tensors(test_images, test_labels)

    torch.manual_seed(0)
    net = network(x.shape[1], options.hidden)
    layer = net[2]
    steps = options.epochs * -(-len(x) // options.batch)
    optimiser = torch.optim.Adam(net.parameters(), lr=3e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, steps)
    for epoch in range(options.epochs):
        begin = time.perf_counter()
        net.train()
        for picks in torch.randperm(len(x)).split(options.batch):
            optimiser.zero_grad()
            loss = nn.functional.cross_entropy(net(x[picks]), y[picks])
            loss.backward()
            optimiser.step()
            schedule.step()
        net.eval()
        with torch.no_grad():
            error = 100 * (net(xt).argmax(1) != yt).float().mean()
        iterations = layer.info.iterations.double().mean()
        print(f"epoch {epoch + 1}: test error {error:.2f} %, {iterations:.1f} iterations per sample, "
              f"{time.perf_counter() - begin:.1f} s", flush=True)

    # %% What is proved ---------------------------------------------------------------------------------------------------
    certificate = layer.certify()
    certificate.recheck()
    print(certificate)
    assert layer.info.converged and certificate.proven and error < 10


if __name__ == "__main__":
    main()
