"""Classifiers from arrays, and their files."""

import numpy as np
import pytest

import subdeq


def rings(count, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(count, 2))
    return X, np.where(np.hypot(*X.T) < 1.1, "inner", "outer")


@pytest.fixture(scope="module")
def fitted():
    seen = []
    model = subdeq.Classifier(
        model="monotone", hidden=24, epochs=60, batch_size=64, learning_rate=0.01, validation_fraction=0.2,
        progress=lambda *epoch: seen.append(epoch),
    )
    X, y = rings(600)
    return model.fit(X, y), seen


def test_it_learns_and_is_certified(fitted):
    model, seen = fitted
    X, y = rings(300, seed=1)
    assert model.score(X, y) > 0.9
    assert list(model.classes_) == ["inner", "outer"] and set(model.predict(X)) == {"inner", "outer"}
    probabilities = model.predict_proba(X)
    assert probabilities.shape == (300, 2) and np.allclose(probabilities.sum(1), 1)
    assert (model.classes_[probabilities.argmax(1)] == model.predict(X)).all()
    assert model.certificate_.proven
    model.certificate_.recheck()
    radius = model.radius(X[:20])
    assert radius.shape == (20,) and (radius[~np.isnan(radius)] > 0).all() and (~np.isnan(radius)).any()
    assert [epoch for epoch, *_ in seen] == list(range(1, 61)) and all(v is not None for *_, v in seen)
    assert model.predict_proba(X[:0]).shape == (0, 2)


def test_radii_hold(fitted):
    model, _ = fitted
    X, _ = rings(30, seed=2)
    radius = model.radius(X)
    known = ~np.isnan(radius)
    assert known.any()
    rng = np.random.default_rng(0)
    for _ in range(20):
        way = rng.normal(size=X.shape)
        moved = X + 0.999 * np.nan_to_num(radius)[:, None] * way / np.linalg.norm(way, axis=1, keepdims=True)
        assert (model.predict(moved)[known] == model.predict(X)[known]).all()


def test_files_hold_the_model(fitted, tmp_path):
    model, _ = fitted
    X, _ = rings(50, seed=3)
    path = tmp_path / "model.safetensors"
    model.save(path)
    again = subdeq.load(path)
    assert (again.decision_function(X) == model.decision_function(X)).all()
    assert again.class_names == ["inner", "outer"] and again.certificate == model.certificate_
    iterations, converged = again.solves(X)
    assert (iterations > 0).all() and converged.all()
    with pytest.raises(ValueError, match="holds no model"):
        subdeq.load(tmp_path / "nothing")
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(ValueError, match="damaged"):
        subdeq.load(path)


def test_bytes_and_images():
    rng = np.random.default_rng(0)
    X = rng.integers(0, 100, size=(120, 8, 8), dtype=np.uint8)
    y = rng.integers(0, 2, size=120)
    X[y == 1, :4] += 100
    model = subdeq.Classifier(model="split-sign", hidden=4, pool=4, epochs=8, batch_size=30, learning_rate=0.01).fit(X, y)
    assert model.score(X, y) == 1.0 and model.certificate_.proven


def test_the_same_seed_gives_the_same_model():
    X, y = rings(100)
    fit = lambda seed: subdeq.Classifier(hidden=8, epochs=3, random_state=seed).fit(X, y).decision_function(X)
    assert (fit(0) == fit(0)).all() and (fit(0) != fit(1)).any()


def test_refusals_are_sentences():
    X, y = rings(20)
    with pytest.raises(ValueError, match="not fitted"):
        subdeq.Classifier().predict(X)
    with pytest.raises(ValueError, match="same class"):
        subdeq.Classifier().fit(X, np.zeros(20))
    with pytest.raises(ValueError, match="one class per sample"):
        subdeq.Classifier().fit(X, y[:3])
    with pytest.raises(ValueError, match="there is no model"):
        subdeq.Classifier(model="transformer").fit(X, y)
    X[3, 1] = np.nan
    with pytest.raises(ValueError, match="number 1 of sample 3 is NaN"):
        subdeq.Classifier().fit(X, y)
    with pytest.raises(TypeError):
        subdeq.Classifier(layers=3)
    with pytest.raises(ValueError, match="has no parameter"):
        subdeq.Classifier().set_params(layers=3)


def test_an_exception_in_progress_ends_the_training():
    class Stop(Exception):
        pass

    def progress(epoch, *_):
        raise Stop

    X, y = rings(40)
    with pytest.raises(Stop):
        subdeq.Classifier(epochs=1000000, progress=progress).fit(X, y)


def test_scikit_learn_accepts_it():
    sklearn = pytest.importorskip("sklearn", reason="scikit-learn is not installed")
    from sklearn.base import clone, is_classifier
    from sklearn.model_selection import cross_val_score
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    X, y = rings(200)
    model = subdeq.Classifier(hidden=16, epochs=30, batch_size=40, learning_rate=0.01)
    assert is_classifier(model) and clone(model).get_params() == model.get_params()
    scores = cross_val_score(make_pipeline(StandardScaler(), model), X, y, cv=3)
    assert scores.mean() > 0.8
