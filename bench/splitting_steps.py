#!/usr/bin/env python3
"""How near to the answer Peaceman-Rachford's splitting is after some iterations, by its step and by how far its iterations go (numpy, f32).

    subdeq reproduce images --only cifar10 --models monotone-product --seeds 2 --device cuda --runs runs
    subdeq data export cifar10 cifar10.npz --as npz
    python3 bench/splitting_steps.py runs/cifar10/monotone-product/seed-1 cifar10.npz

For a trained z = relu(W z + y), W a circular convolution. An iteration is g = C u + 2 t R y, z = relu(g), u <- u + part (2 z - g - u), where
R = (I + t (I - W))^-1 and C = 2 R - I; the engine went all of the way (`part` 1) until these figures, and since then 0.9 of it, or on a GPU 0.5 of it in one iteration of eight. A line says, for some numbers
of iterations, the error of z and in brackets the change of u that a whole iteration would make, which is what stops a solve: relative, medians of the images; at its end, how many iterations it takes on
average until that change is 1e-3. The lines of adjoints, g = W' D g + v for a random v, say the last alone.
"""
import itertools
import json
import struct
import sys

import numpy as np

IMAGES, ITERATIONS = 12, (8, 16, 24, 32, 48, 64)
ENOUGH, MOST = 1e-3, 200
# How much of the way iteration k goes.
PARTS = {f"part {part:.2f}": lambda k, part=part: part for part in (1.0, 0.95, 0.9, 0.8)}
PARTS |= {f"half of every {n}th": lambda k, n=n: 0.5 if k % n == n - 2 else 1.0 for n in (4, 8, 12, 16)}


def safetensors(path):
    """Arrays by name, and what is said of the file."""
    with open(path, "rb") as file:
        header = json.loads(file.read(struct.unpack("<Q", file.read(8))[0]))
        data = file.read()
    said = header.pop("__metadata__")
    arrays = {}
    for name, entry in header.items():
        begin, end = entry["data_offsets"]
        arrays[name] = np.frombuffer(data[begin:end], "<f4").reshape(entry["shape"])
    return arrays, said


def size(x):
    return np.sqrt((x * x).sum((1, 2, 3)))


class Layer:
    """A trained layer with the injections of some test images."""

    def __init__(self, run, images):
        arrays, said = safetensors(f"{run}/model.safetensors")
        given = json.loads(said["standardisation"])
        pixels = np.load(images)["x_test"][:IMAGES].transpose(0, 3, 1, 2) / given["white"]
        mean, deviation = (np.array(given[of])[:, None, None] for of in ("mean", "deviation"))
        self.w = arrays["equation.W"]
        x = (pixels - mean) / deviation
        y = self.correlate(np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1))), arrays["injection0.weight"])
        self.y = (y + arrays["injection0.bias"][:, None, None]).astype(np.float32)
        side, reach = self.y.shape[-1], self.w.shape[-1] // 2
        taps = np.zeros((side, side, *self.w.shape[:2]))
        for i, j in np.ndindex(self.w.shape[2:]):
            taps[(reach - i) % side, (reach - j) % side] += self.w[:, :, i, j]
        self.spectrum = np.fft.fft2(taps, axes=(0, 1))[:, : side // 2 + 1]

    @staticmethod
    def correlate(padded, kernel):
        """Both without what is beyond the padding."""
        side = padded.shape[-1] - kernel.shape[-1] + 1
        return sum(
            np.einsum("oi,bihw->bohw", kernel[:, :, i, j], padded[:, :, i : i + side, j : j + side])
            for i, j in np.ndindex(kernel.shape[2:])
        )

    def residual(self, z):
        """Of the equation itself, without any transform."""
        reach = self.w.shape[-1] // 2
        pad = ((0, 0), (0, 0), (reach, reach), (reach, reach))
        return size(np.maximum(self.correlate(np.pad(z, pad, "wrap"), self.w) + self.y, 0) - z) / size(z)

    def iterate(self, t, part, signs=None):
        """Endlessly: z, and the relative change of u. With signs, the reflection of an adjoint, W' and its solution, of v = y."""
        identity = np.eye(self.w.shape[0])
        spectrum = self.spectrum if signs is None else np.conj(self.spectrum).swapaxes(2, 3)
        resolvent = np.linalg.inv(identity + t * (identity - spectrum))
        reflected = (2 * resolvent - identity).astype(np.complex64)
        wave = lambda x: np.fft.rfft2(x).transpose(2, 3, 1, 0).astype(np.complex64)
        image = lambda x: np.fft.irfft2(x.transpose(3, 2, 0, 1), s=self.y.shape[2:]).astype(np.float32)
        constant, u = image(2 * t * (resolvent @ wave(self.y))), np.zeros_like(self.y)
        for k in itertools.count(1):
            g = image(reflected @ wave(u)) + constant
            z = np.maximum(g, 0)
            change = (np.abs(g) if signs is None else signs * g) - u
            yield z, size(change) / size(u + change)
            u = u + part(k) * change

    def iterations(self, *arguments):
        """How many it takes on average until an iteration changes u by no more than is asked for."""
        taken = np.full(IMAGES, MOST)
        for k, (_, change) in enumerate(self.iterate(*arguments), 1):
            taken[(change <= ENOUGH) & (taken == MOST)] = k
            if k == MOST or taken.max() < MOST:
                return taken.mean()


def main(run, images):
    layer = Layer(run, images)
    step = json.loads(safetensors(f"{run}/checkpoint.safetensors")[1]["subdeq"])["splitting_step"]
    for exact, change in layer.iterate(step, PARTS["part 0.95"]):
        if change.max() < 1e-6:
            break
    print(f"{run}: step {step:.4f}, {IMAGES} images; the residual of what is taken as exact is {layer.residual(exact).max():.1e}")
    for t in (0.5 * step, 0.75 * step, step, 1.5 * step):
        for name, part in PARTS.items():
            line = []
            for k, (z, change) in enumerate(layer.iterate(t, part), 1):
                if k in ITERATIONS:
                    line.append(f"{k}: {np.median(size(z - exact) / size(exact)):.1e} ({np.median(change):.1e})")
                if k == ITERATIONS[-1]:
                    break
            print(f"step {t:.3f}, {name}   {'  '.join(line)}  to {ENOUGH:g}: {layer.iterations(t, part):.1f}", flush=True)
    layer.y = np.random.default_rng(1).standard_normal(layer.y.shape).astype(np.float32)
    for name, part in PARTS.items():
        print(f"adjoint, step {step:.3f}, {name}   to {ENOUGH:g}: {layer.iterations(step, part, np.where(exact > 0, 1.0, -1.0)):.1f}", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
