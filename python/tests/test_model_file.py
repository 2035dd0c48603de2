"""A run's file, read without this software: docs/model-file.md says how, and this is its example."""

import json
import struct

import numpy as np
import pytest

import subdeq


def read_safetensors(path):
    """The arrays and the note of a ``model.safetensors``."""
    raw = path.read_bytes()
    (length,) = struct.unpack("<Q", raw[:8])
    header = json.loads(raw[8 : 8 + length])
    note = json.loads(header.pop("__metadata__")["subdeq"])
    arrays = {}
    for name, entry in header.items():
        begin, end = entry["data_offsets"]
        arrays[name] = np.frombuffer(raw[8 + length + begin : 8 + length + end], "<f4")
    return arrays, note


def logits(path, X):
    """The forward pass of a dense ``monotone`` or ``split-sign`` classifier, in numpy."""
    arrays, note = read_safetensors(path)
    model, data = note["config"]["model"], note["config"]["data"]
    hidden, classes = model["hidden"], model["classes"]
    standardised = (X / data["white"] - data["mean"][0]) / data["deviation"][0]
    y = standardised @ arrays["injection0.weight"].reshape(hidden, -1).T + arrays["injection0.bias"]
    V = arrays["core.weight"].reshape(hidden, hidden).astype(float)
    architecture = model["core"]["architecture"]
    if architecture["name"] == "monotone":
        margin = architecture["parametrisation"]["margin"]
        largest = np.linalg.eigvalsh((V + V.T) / 2)[-1]
        W = V - max(0, largest - (1 - margin)) * np.eye(hidden)
        step = lambda z: np.maximum(z @ W.T + y, 0)
        damping = 0.05
    else:
        y = np.maximum(y, 0)
        softsign = lambda u: u / (1 + np.abs(u))
        step = lambda z: softsign(z @ np.maximum(V, 0).T) - softsign(z @ np.maximum(-V, 0).T) + y + architecture["shift"]
        damping = 1.0
    z = np.ones((len(X), hidden))
    for _ in range(3000):
        z = (1 - damping) * z + damping * step(z)
    normalised = (z - arrays["norm.running_mean"]) / np.sqrt(arrays["norm.running_variance"] + 1e-5)
    normalised = normalised * arrays["norm.scale"] + arrays["norm.offset"]
    return normalised @ arrays["head.weight"].reshape(classes, -1).T + arrays["head.bias"]


@pytest.mark.parametrize("name", ["monotone", "split-sign"])
def test_a_forward_pass_in_numpy(name, tmp_path):
    rng = np.random.default_rng(0)
    X = rng.uniform(0, 3, size=(80, 6))
    y = X[:, 0] > X[:, 1]
    model = subdeq.Classifier(model=name, hidden=12, epochs=5, batch_size=20, learning_rate=0.01, tol=1e-6).fit(X, y)
    path = tmp_path / "model.safetensors"
    model.save(path)
    assert np.abs(logits(path, X) - model.decision_function(X)).max() < 1e-3
