#!/usr/bin/env python3
"""How far a trained neural ODE's answers are from exact ones, by the first step of the integration (numpy, f64).

    subdeq train --data mnist --arch conv --model node-relu --out RUN
    python3 bench/first_step.py RUN ../shared/data/mnist/t10k-images-idx3-ubyte.gz

The method is the engine's (crates/engine/src/cpu/ode): Dormand and Prince 5(4), tolerance 1e-3, its control of steps. "Exact" is the same
at 1e-6. For MNIST's convolutional shape: z(0) = relu(injection), dz/dt = s(W z), both with zeros outside of the image.
"""
import gzip
import json
import struct
import sys

import numpy as np

IMAGES = 24
# As it was; 1.15 and 1.75 times the fifth root of what 1e-3 allows, relative and absolute, of which the engine takes the first.
FIRST_STEPS = (0.1, 0.3318, 0.505)
A = (
    (1 / 5,),
    (3 / 40, 9 / 40),
    (44 / 45, -56 / 15, 32 / 9),
    (19372 / 6561, -25360 / 2187, 64448 / 6561, -212 / 729),
    (9017 / 3168, -355 / 33, 46732 / 5247, 49 / 176, -5103 / 18656),
    (35 / 384, 0, 500 / 1113, 125 / 192, -2187 / 6784, 11 / 84),
)
ERROR = (71 / 57600, 0, -71 / 16695, 71 / 1920, -17253 / 339200, 22 / 525, -1 / 40)


def read_model(path):
    with open(path, "rb") as file:
        header = json.loads(file.read(struct.unpack("<Q", file.read(8))[0]))
        raw = file.read()
    about = header.pop("__metadata__")
    arrays = {
        name: np.frombuffer(raw[slice(*entry["data_offsets"])], "<f4").reshape(entry["shape"]).astype(float)
        for name, entry in header.items()
    }
    return about, arrays


def convolve(x, w):
    height, width = x.shape[1:]
    padded = np.pad(x, ((0, 0), (1, 1), (1, 1)))
    taps = [(i, j) for i in range(3) for j in range(3)]
    return sum(np.tensordot(w[:, :, i, j], padded[:, i : i + height, j : j + width], 1) for i, j in taps)


def integrate(f, z, tolerance, step):
    """The end, the steps that were accepted and those that were not, and the first one's error in units of what is allowed."""
    time, first, accepted, rejected, first_error = 0.0, f(z), 0, 0, None
    while time < 1 - 1e-12:
        stages = [first]
        for row in A:
            point = z + step * sum(a * k for a, k in zip(row, stages))
            stages.append(f(point))
        off = step * sum(e * k for e, k in zip(ERROR, stages))
        error = np.sqrt(np.mean((off / (tolerance + tolerance * np.maximum(abs(z), abs(point)))) ** 2))
        first_error = error if first_error is None else first_error
        if error <= 1:
            time, z, first, accepted = time + step, point, stages[-1], accepted + 1
        else:
            rejected += 1
        step *= min(max(0.9 * max(error, 1e-10) ** -0.2, 0.2), 5)
        if step > (1 - time) * (1 - 1e-9):
            step = 1 - time
    return z, accepted, rejected, first_error


def main(run, images):
    about, model = read_model(f"{run}/model.safetensors")
    activation = (lambda u: np.maximum(u, 0)) if "relu(W z)" in about["equation"] else np.tanh
    standard = json.loads(about["standardisation"])
    pixels = np.frombuffer(gzip.open(images).read()[16 : 16 + 784 * IMAGES], np.uint8).reshape(-1, 1, 28, 28)
    pixels = (pixels / standard["white"] - standard["mean"][0]) / standard["deviation"][0]
    bias = model["injection0.bias"][:, None, None]
    starts = [np.maximum(convolve(x, model["injection0.weight"]) + bias, 0) for x in pixels]
    slope = lambda z: activation(convolve(z, model["core.weight"]))
    exact = [integrate(slope, z, 1e-6, 0.01)[0] for z in starts]
    print(f"{about['equation']}; {IMAGES} test images; errors of the ends relative to them, in the 2-norm")
    for first in FIRST_STEPS:
        ends = [integrate(slope, z, 1e-3, first) for z in starts]
        errors = [np.linalg.norm(z - e) / np.linalg.norm(e) for (z, *_), e in zip(ends, exact)]
        _, accepted, rejected, allowed = zip(*ends)
        print(
            f"first step {first:6}: mean {np.mean(errors):.2e}, largest {max(errors):.2e}; steps {min(accepted)} to {max(accepted)},"
            f" rejected {sum(rejected)}; the first one's error {min(allowed):.1e} to {max(allowed):.1e} of what is allowed"
        )


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    try:
        main(*sys.argv[1:])
    except (OSError, EOFError, ValueError, LookupError, struct.error) as error:
        sys.exit(f"first_step.py: not a run of a neural ODE on MNIST conv and MNIST's images: {error!r}")
