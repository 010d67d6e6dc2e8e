"""A last layer fitted on frozen features."""

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import StandardScaler

from pipeline.features import linear
from pipeline.features.linear import fit_head
from pipeline.models import set_head
from tests.fixtures.projects import class_blobs
from tests.fixtures.training import build_resnet


def _overlapping(n_classes: int) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Blobs that no plane parts, far from the origin, each feature in another unit; one is dead."""
    rng = np.random.default_rng(n_classes)
    features, labels = class_blobs(rng, n_classes, per_class=60, dimensions=12, spread=12.0)
    scaled = features * np.geomspace(1e-3, 1e3, 12) + 40
    scaled[:, 5] = 0
    return scaled.astype(np.float32), labels


@pytest.mark.parametrize("n_classes", [2, 3, 7])
def test_the_layer_predicts_what_the_fitted_model_does(n_classes: int) -> None:
    features, labels = _overlapping(n_classes)
    fitted = slice(len(labels) // 2)
    head = fit_head(features[fitted], labels[fitted])
    scaler = StandardScaler().fit(features[fitted].astype(np.float64))
    model = LogisticRegression(max_iter=1000).fit(scaler.transform(features[fitted].astype(np.float64)), labels[fitted])
    expected = model.predict_proba(scaler.transform(features.astype(np.float64)))
    assert 0.4 < (expected.argmax(1) == labels).mean() < 1
    layer = torch.nn.Linear(12, n_classes)
    with torch.no_grad():
        layer.weight.copy_(torch.from_numpy(head.weight))
        layer.bias.copy_(torch.from_numpy(head.bias))
        given = layer(torch.from_numpy(features)).softmax(1).numpy()
    np.testing.assert_allclose(given, expected, atol=1e-3)
    np.testing.assert_array_equal(given.argmax(1), model.predict(scaler.transform(features.astype(np.float64))))
    own = expected[fitted][np.arange(len(labels[fitted])), labels[fitted]]
    assert head.train_loss == pytest.approx(-np.log(own).mean())
    assert head.iterations == model.n_iter_.max()
    assert head.converged


def test_equal_features_give_equal_layers() -> None:
    features, labels = _overlapping(3)
    one, other = fit_head(features, labels), fit_head(features.copy(), labels.copy())
    np.testing.assert_array_equal(one.weight, other.weight)
    np.testing.assert_array_equal(one.bias, other.bias)


def test_a_fit_that_does_not_converge_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(linear, "MAX_ITERATIONS", 2)
    head = fit_head(*_overlapping(3))
    assert (head.iterations, head.converged) == (2, False)


def test_a_network_takes_the_layer_for_its_last() -> None:
    model, weight, bias = build_resnet(), torch.randn(4, 512), torch.randn(4)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    set_head(model, weight, bias)
    changed = [name for name, tensor in model.state_dict().items() if not torch.equal(tensor, before[name])]
    assert changed == ["backbone.fc.weight", "backbone.fc.bias"]
    features = torch.randn(3, 512)
    torch.testing.assert_close(model.classify(features), features @ weight.T + bias)
