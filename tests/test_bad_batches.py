"""Misuse of batches, posteriors and predictions is a ValueError that names the culprit."""

from typing import Any

import jax
import jax.numpy as jnp
import lineax as lx
import numpy as np
import pytest

import linmodels as lm

_RNG = np.random.default_rng(1)
X = _RNG.normal(size=(6, 3)).astype(np.float32)
Y = _RNG.normal(size=6).astype(np.float32)
NAN = float("nan")
PRIOR = lm.GaussianPrior(1.0)


pytestmark = pytest.mark.usefixtures("unchecked")


def put(array: np.ndarray, index: Any, value: float) -> np.ndarray:
    copy = np.array(array)
    copy[index] = value
    return copy


def observe(x, y, *, likelihood=None, **rest):
    likelihood = lm.Gaussian(2.0) if likelihood is None else likelihood
    return lm.Observations(lx.MatrixLinearOperator(x), y, likelihood, **rest)


def rows(*arrays, size: int = 3) -> lm.RowSlices:
    return lm.RowSlices(*arrays, batch_size=size)


def run(batches: Any, function: Any = observe, *shared: Any, **rest: Any) -> lm.Fit:
    return lm.infer(lm.Batched(batches, function, *shared), PRIOR, num_samples=0, **rest)


def refused(call, message: str) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        call()
    assert caught.type is ValueError


@pytest.mark.parametrize(
    ("arrays", "size", "message"),
    [
        ((), 2, r"at least one row: \[\]"),
        ((X, Y[:5]), 2, r"at least one row: \[6, 5\]"),
        ((X[:0], Y[:0]), 2, r"at least one row: \[0, 0\]"),
        ((X, np.float32(1)), 2, r"at least one row: \[6, 0\]"),
        ((X, Y), 0, "batch_size must be .* got 0"),
        ((X, Y), 1.5, r"batch_size must be .* got 1\.5"),
        ((X, Y), True, r"batch_size must be .* got True"),
    ],
)
def test_row_slices(arrays, size, message):
    refused(lambda: lm.RowSlices(*arrays, batch_size=size), message)


@pytest.mark.parametrize(
    ("batches", "message"),
    [
        ([], "Empty data"),
        ([(X[:0], Y[:0])], r"batch 0: .*\[\(0, 3\), \(0,\)\]"),
        ([(X, Y[:5])], r"batch 0: .*\[\(6, 3\), \(5,\)\]"),
        ([()], "batch 0: "),
        ([X], "tuple of arrays, got ndarray"),
        ([3.0], "tuple of arrays, got float"),
        (iter([(X, Y)]), "batches must be a sequence, got list_iterator"),
        (
            [(X[:3], Y[:3]), (X[3:4], Y[3:4]), (X[3:], Y[3:])],
            "batch 1 has 1 rows, the first 3: only the last",
        ),
        ([(X[:2], Y[:2]), (X[2:], Y[2:])], "batch 1 has 4 rows, the first 2"),
        ([(X[:3], Y[:3]), (X[3:, :2], Y[3:])], r"batch 1 has rows of shapes \[\(2,\), \(\)\]"),
        ([(X[:3], Y[:3]), (X[3:],)], r"batch 1 has rows of shapes \[\(3,\)\]"),
        ([(X[:3], Y[:3]), (X[3:], np.array(list("abc")))], "batch 1: array 1 holds <U1"),
        ([(X[:3], Y[:3]), (X[3:], np.array([None] * 3))], "batch 1: array 1 holds object"),
        ([(X, Y * 1j)], "targets must be real numbers.*complex"),
    ],
)
def test_batches(batches, message):
    refused(lambda: run(batches), message)


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (3, "observe must be a function, got 3"),
        (lambda x, y: (x, y), "observe must return Observations, got .*tuple"),
        (lambda x, y: observe(x[:1], y[:1]), r"weights must be one an .*\(1,\), got shape \(3,\)"),
        (lambda x, y: observe(x, y[:, None]), r"targets has shape \[\(3, 1\)\].*\[\(3,\)\]"),
        (
            lambda x, y: observe(
                x, y, likelihood=lm.Gaussian(factor=lx.MatrixLinearOperator(jnp.eye(3)))
            ),
            "noise that is independent between observations",
        ),
    ],
)
def test_observe(function, message):
    refused(lambda: run(rows(X, Y), function), message)


@pytest.mark.parametrize("side", ["primal", "dual"])
@pytest.mark.parametrize("learned", [False, True])
@pytest.mark.parametrize(
    ("x", "y", "message"),
    [
        (X, put(Y, 4, NAN), r"batch 1: targets must be finite; entry \(1,\) is nan"),
        (put(X, (4, 2), np.inf), Y, "batch 1: the design must be finite; row 1, column 2"),
    ],
)
def test_not_finite_in_a_batch(side, learned, x, y, message):
    """NaN in the middle of the data: batch, field and place are in the message."""
    noise = lm.Gaussian() if learned else lm.Gaussian(2.0)
    data = lm.Batched(rows(x, y), lambda x, y, n: observe(x, y, likelihood=n), noise)
    verb = lm.maximise_evidence if learned else lm.infer
    refused(lambda: verb(data, PRIOR, num_samples=0, method=lm.Exact(side)), message)


@pytest.mark.parametrize(
    ("function", "value", "message"),
    [
        (lambda x, y, o: observe(x, y, offset=o), NAN, "batch 1: offset must be finite"),
        (lambda x, y, w: observe(x, y, weights=w), NAN, "batch 1: weights must be finite"),
        (lambda x, y, w: observe(x, y, weights=w), -1.0, r"batch 1: weights .*\(1,\) is -1"),
        (
            lambda x, y, b: observe(x, y, likelihood=lm.Gaussian(b)),
            -1.0,
            r"batch 1: noise_precision .*\(1,\) is -1",
        ),
    ],
)
def test_bad_numbers_in_a_batch(function, value, message):
    refused(lambda: run(rows(X, Y, put(Y**2, 4, value)), function), message)


def test_a_bad_shared_value():
    noisy = lambda x, y, b: observe(x, y, likelihood=lm.Gaussian(b))
    refused(lambda: run(rows(X, Y), noisy, jnp.float32(NAN)), "noise_precision must be finite")


class _Broken:
    """A reader whose second batch fails."""

    def __init__(self, error: Exception):
        self.error = error

    def __len__(self) -> int:
        return 3

    def __getitem__(self, index: int):
        if index == 1:
            raise self.error
        return X[2 * index : 2 * index + 2], Y[2 * index : 2 * index + 2]


@pytest.mark.parametrize("error", [OSError("disk"), ValueError("parse"), KeyError("row")])
def test_a_reader_that_raises(error):
    """The reader's own error comes out, with the batch in a note."""
    with pytest.raises(type(error)) as caught:
        run(_Broken(error))
    assert caught.value is error
    assert "while reading batch 1 of 3" in error.__notes__


def test_batches_stream_outside_jit():
    value = lambda alpha: lm.log_evidence(lm.Batched(rows(X, Y), observe), lm.GaussianPrior(alpha))
    refused(lambda: jax.jit(value)(1.0), "outside jit")


def posterior(likelihood=None, **rest: Any) -> lm.Posterior:
    data = observe(jnp.asarray(X), Y, likelihood=likelihood)
    return lm.infer(data, PRIOR, **{"num_samples": 0, **rest}).posterior


def matrix(array: Any = X) -> lx.MatrixLinearOperator:
    return lx.MatrixLinearOperator(jnp.asarray(array))


def _tree_design() -> lx.AbstractLinearOperator:
    parameters = {
        "a": jax.ShapeDtypeStruct((), jnp.float32),
        "b": jax.ShapeDtypeStruct((2,), jnp.float32),
    }
    return lx.FunctionLinearOperator(lambda p: p["a"] + p["b"], parameters)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda p: p.predict(X), "design must be a lineax operator, got ndarray"),
        (lambda p: p.predict(matrix(np.ones((2, 4)))), r"takes float\d\d\[4\], θ is float32\[3\]"),
        (lambda p: p.predict(_tree_design()), "takes {'a': .*, θ is"),
        (lambda p: p.predict(matrix(X * 1j)), "real floats, got dtype complex64"),
        (lambda p: p.predict(matrix(put(X, (2, 0), NAN))), r"the design, .*entry \(2,\) is nan"),
        (lambda p: p.predict(matrix(), Y[:5]), r"offset has shape \[\(5,\)\].*\[\(6,\)\]"),
        (lambda p: p.predict(matrix(), Y[:, None]), r"offset has shape \[\(6, 1\)\].*\[\(6,\)\]"),
        (lambda p: p.predict(matrix(), 1.0), r"offset has shape \[\(\)\]"),
        (lambda p: p.predict(matrix(), {"a": Y}), "offset must have the structure.*'a'"),
        (lambda p: p.predict(matrix(), Y.tolist()), "offset .*array, not a list"),
        (lambda p: p.predict(matrix(), put(Y, 1, NAN)), r"offset .*entry \(1,\) is nan"),
        (lambda p: p.predict(matrix(), Y * 1j), "offset must be real numbers.*complex"),
        (lambda p: p.predict(matrix(), np.array(list("abcdef"))), "offset must be real.*'a'"),
        (lambda p: p.contrast(np.ones(4)), r"shape \(1, 4\), θ has 3"),
        (lambda p: p.contrast(np.ones((1, 1, 3))), r"shape \(1, 1, 3\)"),
        (lambda p: p.contrast(put(X[0], 1, NAN)), r"weights .*\(0, 1\) is nan"),
        (lambda p: p.contrast("abc"), "weights must be real numbers, got abc"),
    ],
)
def test_predict_and_contrast(call, message):
    refused(lambda: call(posterior()), message)


@pytest.mark.parametrize("level", [0.0, 1.0, -0.1, 1.5, NAN, "a", None, [0.5]])
def test_level(level):
    for call in (posterior().summary, posterior().predict(matrix()).interval):
        refused(lambda c=call: c(level), "level must be a number between 0 and 1, got")


@pytest.mark.parametrize(
    ("targets", "message"),
    [
        (Y[:, None], r"targets has shape \[\(6, 1\)\]"),
        (Y[:5], r"targets has shape \[\(5,\)\]"),
        ({"a": Y}, "targets must have the structure.*'a'"),
        (put(Y, 2, NAN), r"targets must be finite; entry \(2,\) is nan"),
        (Y * 1j, "targets must be real numbers.*complex"),
        (np.array(list("abcdef")), "targets must be real numbers.*'a'"),
    ],
)
def test_log_prob_of_bad_targets(targets, message):
    prediction = posterior().predict(matrix())
    refused(lambda: prediction.log_prob(targets), message)
    refused(lambda: prediction.joint_log_prob(targets), message)


def test_samples_that_were_not_drawn_or_need_a_key():
    refused(lambda: posterior().predict(matrix()).samples(), "No deviations were drawn")
    drawn = posterior(num_samples=2, key=jax.random.key(0)).predict(matrix())
    refused(lambda: drawn.samples(noise=True), "needs a key")
    refused(lambda: drawn.samples(noise=True, key=0), "key must be one key")


NOISY = [
    lambda p: p.std(noise=True),
    lambda p: p.covariance(noise=True),
    lambda p: p.interval(),
    lambda p: p.log_prob(jnp.zeros_like(p.mean)),
]


@pytest.mark.parametrize("call", NOISY)
@pytest.mark.parametrize(
    ("likelihood", "message"),
    [
        (lm.Gaussian(np.arange(1.0, 7)), r"\(6,\) is one an observation"),
        (lm.Gaussian(matrix(np.eye(6))), "belongs to the training"),
        (lm.Gaussian(0.0), "precision is 0"),
    ],
)
def test_noise_of_the_training_data_is_not_that_of_new_points(call, likelihood, message):
    """As many new points as old ones: their noise is still another; it must be given."""
    prediction = posterior(likelihood).predict(matrix(X[::-1]))
    refused(lambda: call(prediction), message)
    own = posterior(likelihood).predict(matrix(X[::-1]), likelihood=lm.Gaussian(4.0))
    assert np.isfinite(np.asarray(own.std(noise=True))).all()


def test_noise_that_is_unknown_or_singular():
    two = lx.FunctionLinearOperator(
        lambda w: jnp.asarray(X) @ w, jax.ShapeDtypeStruct((3, 2), jnp.float32)
    )
    for noise in (
        lm.Gaussian(matrix(np.ones((2, 2)))),
        lm.Gaussian(factor=matrix(np.ones((2, 2)))),
        lm.Gaussian(factor=matrix(np.ones((1, 2)))),
    ):
        data = lm.Observations(two, np.c_[Y, Y], noise)
        singular = lm.infer(data, PRIOR, num_samples=0).posterior.predict(two)
        refused(lambda p=singular: p.std(noise=True), "singular .rank 1 of 2")
    unknown = posterior().predict(matrix(), likelihood=lm.Gaussian())
    refused(lambda: unknown.std(noise=True), "unknown; use the likelihood of the fit")


def test_what_only_an_exact_posterior_can_say():
    bare = lm.Posterior(jnp.ones(3, jnp.float32), jnp.zeros((0, 3), jnp.float32), None)
    refused(bare.std, "No deviations were drawn")
    refused(bare.as_prior, "Only an exact posterior")
    refused(lambda: bare.predict(matrix()).covariance(), "No deviations were drawn")


def test_leave_one_out():
    data = observe(jnp.asarray(X), Y)
    fit = lm.infer(data, PRIOR, num_samples=0)
    refused(lambda: lm.leave_one_out(fit, data), "the observations and their fit, in this order")
    refused(lambda: lm.leave_one_out(observe(jnp.ones((6, 4), jnp.float32), Y), fit), "θ is")
    shared = observe(jnp.asarray(X), Y, likelihood=lm.Gaussian(matrix(np.eye(6))))
    refused(lambda: lm.leave_one_out(shared, fit), "independent between observations")


@pytest.mark.parametrize("seed", range(4))
def test_leaving_out_the_only_word_on_a_parameter(seed):
    """A leverage of 1 but for rounding, of either sign, is refused: no residual of 1e7 or 0."""
    rng = np.random.default_rng(seed)
    indicator = np.zeros(8)
    indicator[3] = rng.normal()
    design = np.c_[indicator, np.full(8, 3.0), rng.normal(size=(8, 4))].astype(np.float32)
    noise = lm.Gaussian(float(np.exp(rng.normal())))
    data = observe(jnp.asarray(design), 10 * rng.normal(size=8), likelihood=noise)
    fit = lm.infer(data, lm.GaussianPrior(1.0, flat=np.arange(6) < 2), num_samples=0)
    refused(lambda: lm.leave_one_out(data, fit), "Observation 3 alone determines a parameter")


def test_metrics_do_not_broadcast():
    column = Y[:, None]
    refused(lambda: lm.metrics.gaussian_log_prob(Y, Y, column), "must have one shape")
    refused(lambda: lm.metrics.coverage(Y, column, Y), "must have one shape")
