"""Classifiers around an equilibrium, with scikit-learn's habits."""

from __future__ import annotations

import json
import os
from typing import Any, Callable, Optional

import numpy as np

from . import _subdeq
from ._subdeq import Certificate

#: Called after every epoch: its number, the mean loss, the error in percent, the validation error in percent or None.
Progress = Callable[[int, float, float, Optional[float]], None]


class TrainedClassifier:
    """A trained model: what `load` returns and what a `Classifier` has inside once it is fitted."""

    def __init__(self, model: _subdeq.Classifier):
        self._model = model
        self._config = json.loads(model.config())

    @property
    def config(self) -> dict:
        """Everything that decided the result of its training."""
        return json.loads(self._model.config())

    @property
    def shape(self) -> tuple[int, int, int]:
        """Channels, height and width of a sample."""
        model = self._config["model"]
        return model["channels"], model["height"], model["width"]

    @property
    def class_names(self) -> list[str]:
        """The names of the classes, in the order of the logits."""
        return list(self._config["data"]["class_names"])

    def _samples(self, X: Any) -> np.ndarray:
        X = np.asarray(X)
        count = int(np.prod(self.shape))
        if X.ndim == 0 or (X.size and X.size != len(X) * count):
            raise ValueError(f"samples of shape {X.shape[1:]}: this model takes {self.shape} (channels, height, width)")
        return np.ascontiguousarray(X, dtype=np.float32).reshape(len(X), count)

    def decision_function(self, X: Any) -> np.ndarray:
        """The logits, one row per sample. Numbers are as in training: bytes from 0 to 255, or floats as they were fitted."""
        return self._model.logits(self._samples(X))

    def predict_proba(self, X: Any) -> np.ndarray:
        """The probabilities of the classes, one row per sample."""
        logits = self.decision_function(X)
        if not len(logits):
            return logits
        weights = np.exp(logits - logits.max(axis=1, keepdims=True))
        return weights / weights.sum(axis=1, keepdims=True)

    def predict(self, X: Any) -> np.ndarray:
        """The index of the most probable class of each sample."""
        return self.decision_function(X).argmax(axis=1)

    def solves(self, X: Any) -> tuple[np.ndarray, np.ndarray]:
        """How the solve of each sample went: applications of the map, and whether it converged."""
        return self._model.solves(self._samples(X))

    def radius(self, X: Any) -> np.ndarray:
        """For each sample a distance (2-norm, in numbers that are 1 where a byte is white) within which every input gets the
        same class, proved; not a number where nothing is proved."""
        return self._model.radius(self._samples(X))

    @property
    def certificate(self) -> Optional[Certificate]:
        """What is proved about its equation for all inputs that it is meant for; None for models without a fixed point."""
        return self._model.certificate()

    def save(self, path: str | os.PathLike) -> None:
        """Writes a ``model.safetensors``, which `load` and the program ``subdeq`` read."""
        self._model.save(os.fspath(path))

    def arrays(self) -> dict[str, np.ndarray]:
        """The arrays of its ``model.safetensors`` with their shapes; docs/model-file.md says what each is."""
        return {name: data.reshape(array_shape(self._config["model"], name, data.size)) for name, data in self._model.arrays()}

    def with_arrays(self, arrays: dict[str, Any]) -> "TrainedClassifier":
        """The same model with other numbers in its arrays (trained further elsewhere, for example); certified anew."""
        flat = [(name, np.ascontiguousarray(data, dtype=np.float32).reshape(-1)) for name, data in arrays.items()]
        return TrainedClassifier(self._model.with_arrays(sorted(flat)))


def array_shape(model: dict, name: str, size: int) -> tuple[int, ...]:
    """The shape of an array of a ``model.safetensors``, which holds them flat."""
    hidden, classes = model["hidden"], model["classes"]
    if name == "head.weight":
        return classes, size // classes
    if not name.endswith("weight") and not name.startswith("core."):
        return (size,)
    if name.startswith("core.") and (name.endswith("bias") or (name == "core.b" and size == 1)):
        return (size,)
    columns = size // hidden
    if model["pool"] is None or size == hidden * hidden:
        return hidden, columns
    return hidden, columns // 9, 3, 3


def load(path: str | os.PathLike) -> TrainedClassifier:
    """The model of a run's folder (``subdeq train`` makes one) or of a ``model.safetensors``."""
    return TrainedClassifier(_subdeq.Classifier.load(os.fspath(path)))


class Classifier:
    """A classifier around an equilibrium layer, with scikit-learn's habits.

    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(200, 5)); y = np.where(X[:, 0] * X[:, 1] > 0, "same", "other")
    >>> model = Classifier(model="monotone", hidden=16, epochs=40, learning_rate=0.02, batch_size=50).fit(X, y)
    >>> model.score(X, y) > 0.9
    True
    >>> model.certificate_.verdict
    'proven'

    ``X`` is samples x features, or samples x channels x height x width (samples x height x width for grey images); give
    ``pool`` for a convolutional model. Numbers are standardised by the mean and the deviation of each channel. With
    ``validation_fraction`` above 0, that share is held out and the epoch with the lowest error on it is kept; else the last.
    """

    def __init__(
        self,
        model: str = "monotone",
        *,
        hidden: int = 64,
        pool: Optional[int] = None,
        epochs: int = 20,
        batch_size: int = 128,
        learning_rate: float = 1e-3,
        weight_decay: float = 1e-5,
        tol: float = 1e-3,
        max_iter: int = 100,
        validation_fraction: float = 0.0,
        random_state: int = 0,
        progress: Optional[Progress] = None,
    ):
        self.model = model
        self.hidden = hidden
        self.pool = pool
        self.epochs = epochs
        self.batch_size = batch_size
        self.learning_rate = learning_rate
        self.weight_decay = weight_decay
        self.tol = tol
        self.max_iter = max_iter
        self.validation_fraction = validation_fraction
        self.random_state = random_state
        self.progress = progress

    _PARAMETERS = (
        "model", "hidden", "pool", "epochs", "batch_size", "learning_rate", "weight_decay", "tol", "max_iter",
        "validation_fraction", "random_state", "progress",
    )

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """The keywords, as scikit-learn asks for them."""
        return {name: getattr(self, name) for name in self._PARAMETERS}

    def set_params(self, **params: Any) -> "Classifier":
        """Replaces keywords."""
        for name, value in params.items():
            if name not in self._PARAMETERS:
                raise ValueError(f"a Classifier has no parameter {name!r}; it has {', '.join(self._PARAMETERS)}")
            setattr(self, name, value)
        return self

    def fit(self, X: Any, y: Any) -> "Classifier":
        """Trains from scratch on samples with their classes, which may be any values."""
        X, y = np.asarray(X), np.asarray(y)
        if X.ndim not in (2, 3, 4) or len(X) != len(y):
            raise ValueError(f"X of shape {X.shape} with y of shape {y.shape}: one class per sample is needed")
        shape = {2: (1, 1, X.shape[-1]), 3: (1, *X.shape[1:]), 4: X.shape[1:]}[X.ndim]
        self.classes_, labels = np.unique(y, return_inverse=True)
        if len(self.classes_) < 2:
            raise ValueError("all samples have the same class: there is nothing to learn")
        options = {
            "model": self.model, "hidden": self.hidden, "pool": self.pool, "epochs": self.epochs, "batch": self.batch_size,
            "learning_rate": self.learning_rate, "weight_decay": self.weight_decay, "tolerance": self.tol,
            "max_iterations": self.max_iter, "validation": self.validation_fraction, "seed": self.random_state,
            "white": 255 if X.dtype == np.uint8 else 1, "class_names": [str(name) for name in self.classes_],
        }
        samples = np.ascontiguousarray(X, dtype=np.float32)
        trained = _subdeq.Classifier.fit(samples, labels.tolist(), list(shape), options, self.progress)
        self.model_ = TrainedClassifier(trained)
        self.n_features_in_ = int(np.prod(shape))
        return self

    def _fitted(self) -> TrainedClassifier:
        if not hasattr(self, "model_"):
            raise ValueError("this Classifier is not fitted yet: call fit first")
        return self.model_

    def predict(self, X: Any) -> np.ndarray:
        """The most probable class of each sample."""
        fitted = self._fitted()
        return self.classes_[fitted.predict(X)]

    def predict_proba(self, X: Any) -> np.ndarray:
        """The probabilities of ``classes_``, one row per sample."""
        return self._fitted().predict_proba(X)

    def decision_function(self, X: Any) -> np.ndarray:
        """The logits of ``classes_``, one row per sample."""
        return self._fitted().decision_function(X)

    def score(self, X: Any, y: Any) -> float:
        """The share of samples that get their class."""
        return float(np.mean(self.predict(X) == np.asarray(y)))

    @property
    def certificate_(self) -> Optional[Certificate]:
        """What is proved about the trained equation."""
        return self._fitted().certificate

    def radius(self, X: Any) -> np.ndarray:
        """See `TrainedClassifier.radius`."""
        return self._fitted().radius(X)

    def save(self, path: str | os.PathLike) -> None:
        """See `TrainedClassifier.save`."""
        self._fitted().save(path)

    def __sklearn_tags__(self):
        from sklearn.utils import ClassifierTags, InputTags, Tags, TargetTags

        return Tags(
            estimator_type="classifier", target_tags=TargetTags(required=True), classifier_tags=ClassifierTags(),
            input_tags=InputTags(three_d_array=True),
        )

    def __repr__(self) -> str:
        return f"Classifier({', '.join(f'{name}={value!r}' for name, value in self.get_params().items())})"
