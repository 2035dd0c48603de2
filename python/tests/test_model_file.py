"""A run's file, read without this software: by the program that docs/model-file.md prints."""

import json
import re
from pathlib import Path

import numpy as np
import pytest

import subdeq

PAGE = Path(__file__).parents[2] / "docs" / "model-file.md"
DENSE = ["monotone", "monotone-product", "monotone-tied", "mondeq-tanh", "split-sign", "row-signed", "divisive", "rational", "power-ratio", "gains"]
DENSE += ["subdeq-tanh", "subdeq-normalized-tanh", "subdeq-abs-normalized-tanh", "subdeq-normalized-power-tanh"]
CONV = ["monotone", "mondeq-relu", "monotone-tied", "monotone-tanh", "split-sign", "power-ratio", "gains", "subdeq-normalized-tanh"]


def printed_program():
    (program,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    names = {}
    exec(compile(program, str(PAGE), "exec"), names)
    return names


def trained(name, shape, **keywords):
    rng = np.random.default_rng(0)
    X = rng.uniform(0, 3, size=(40, *shape))
    y = np.where(X.reshape(40, -1)[:, 0] > X.reshape(40, -1)[:, 1], "larger", "smaller")
    options = dict(hidden=5, epochs=2, batch_size=20, learning_rate=0.01, tol=1e-6, max_iter=2000)
    return subdeq.Classifier(model=name, **{**options, **keywords}).fit(X, y), X


@pytest.mark.parametrize("name", DENSE)
def test_a_dense_forward_pass_in_numpy(name, tmp_path):
    model, X = trained(name, (6,))
    model.save(tmp_path / "model.safetensors")
    page = printed_program()
    found = page["logits"](tmp_path / "model.safetensors", X.reshape(-1, 1, 1, 6))
    assert np.abs(found - model.decision_function(X)).max() < 1e-3


@pytest.mark.parametrize("name", CONV)
def test_a_convolutional_forward_pass_in_numpy(name, tmp_path):
    model, X = trained(name, (2, 5, 6), pool=2)
    model.save(tmp_path / "model.safetensors")
    page = printed_program()
    found = page["logits"](tmp_path / "model.safetensors", X)
    assert np.abs(found - model.decision_function(X)).max() < 1e-3


def test_the_texts_of_a_file(tmp_path):
    model, _ = trained("mondeq-relu", (2, 5, 6), pool=2)
    path = tmp_path / "model.safetensors"
    model.save(path)
    arrays, texts = printed_program()["read"](path)
    assert json.loads(texts["classes"]) == ["larger", "smaller"]
    assert texts["equation"] == "z = relu(W z + y)" and texts["layout"] == "conv"
    assert "PROVEN" in texts["certificate"].upper()
    shapes = {name: array.shape for name, array in arrays.items()}
    assert shapes["equation.W"] == (5, 5, 5, 5) and shapes["core.a"] == (5, 5, 3, 3)
    assert shapes["injection0.weight"] == (5, 2, 3, 3) and shapes["head.weight"] == (2, 5 * 2 * 3)
    loaded = subdeq.load(path)
    assert {f"equation.{name}" for name in loaded.weights()} | set(loaded.arrays()) == set(arrays)
    assert all(np.array_equal(arrays[name], array) for name, array in loaded.arrays().items())
    assert all(np.array_equal(arrays[f"equation.{name}"], array) for name, array in loaded.weights().items())
