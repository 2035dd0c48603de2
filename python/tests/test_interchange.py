"""Runs to PyTorch and back."""

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
from torch import nn  # noqa: E402

import subdeq  # noqa: E402
from subdeq.torch import from_run, load_subdeq  # noqa: E402


def trained(model, pool=None, shape=(6, 6)):
    rng = np.random.default_rng(0)
    X = rng.uniform(size=(60, *shape)).astype(np.float32)
    y = (X.mean(axis=(1, 2)) > 0.5).astype(int)
    keywords = dict(hidden=5, pool=pool, epochs=3, batch_size=20, learning_rate=0.01, tol=1e-6)
    return subdeq.Classifier(model=model, **keywords).fit(X, y), X


MODELS = ["split-sign", "monotone", "power-ratio", "mondeq-relu", "monotone-tied", "gains", "subdeq-normalized-tanh"]


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("pool", [None, 3])
def test_a_run_is_the_same_in_pytorch(model, pool, tmp_path):
    classifier, X = trained(model, pool)
    path = tmp_path / "model.safetensors"
    classifier.save(path)
    module = from_run(path, tol=1e-6)
    with torch.no_grad():
        logits = module(module.standardise(torch.from_numpy(X))).numpy()
    assert np.abs(logits - classifier.decision_function(X)).max() < 2e-3
    back = module.to_run()
    assert np.abs(back.decision_function(X) - classifier.decision_function(X)).max() < 1e-5
    names = set(module.state_dict())
    assert {"head.weight", "norm.running_var", "injections.0.weight"} <= names


def test_training_goes_on_in_pytorch_and_comes_back(tmp_path):
    classifier, X = trained("split-sign")
    module = from_run(classifier.model_).train()
    x, y = module.standardise(torch.from_numpy(X)), torch.from_numpy((X.mean(axis=(1, 2)) > 0.5).astype(int))
    optimiser = torch.optim.Adam(module.parameters(), 0.01)
    for _ in range(30):
        optimiser.zero_grad()
        nn.functional.cross_entropy(module(x), y).backward()
        optimiser.step()
    module.eval()
    run = module.to_run()
    run.save(tmp_path / "further.safetensors")
    again = subdeq.load(tmp_path / "further.safetensors")
    with torch.no_grad():
        logits = module(x).numpy()
    assert np.abs(logits - again.decision_function(X)).max() < 5e-3
    assert again.certificate.proven and (again.predict(X) == y.numpy()).mean() > 0.9


def test_ambiguous_names_are_asked_for():
    two = nn.ModuleDict({"one": nn.Linear(4, 4, bias=False), "two": nn.Linear(4, 4, bias=False), "u": nn.Linear(3, 4)})
    with pytest.raises(ValueError, match="say which"):
        load_subdeq(two.state_dict())
    _, layer = load_subdeq(two.state_dict(), W="two")
    assert torch.equal(layer.weight, two["two"].weight)
    with pytest.raises(ValueError, match="not an equilibrium"):
        from_run(trained("explicit-tanh")[0].model_)
