"""Misuse is a ValueError that names the culprit and its value; nothing else ever comes out."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import lineax as lx
import numpy as np
import pytest

import linmodels as lm

_RNG = np.random.default_rng(0)
X = _RNG.normal(size=(6, 3)).astype(np.float32)
Y = _RNG.normal(size=6).astype(np.float32)
Y2 = _RNG.normal(size=(6, 2)).astype(np.float32)
TEXT = np.array(list("abcdef"))
NAN = float("nan")

Call = Callable[[], Any]


pytestmark = pytest.mark.usefixtures("unchecked")


def put(array: np.ndarray, index: Any, value: float) -> np.ndarray:
    copy = np.array(array)
    copy[index] = value
    return copy


def matrix(array: Any = X) -> lx.MatrixLinearOperator:
    return lx.MatrixLinearOperator(jnp.asarray(array))


def outputs(array: np.ndarray = X) -> lx.AbstractLinearOperator:
    """Two outputs an observation: w of shape (3, 2) to x w."""
    return lx.FunctionLinearOperator(
        lambda w: jnp.asarray(array) @ w, jax.ShapeDtypeStruct((3, 2), jnp.float32)
    )


def observe(targets: Any = Y, likelihood: Any = None, design: Any = None, **rest: Any):
    design = matrix() if design is None else design
    return lm.Observations(design, targets, lm.Gaussian(2.0) if likelihood is None else likelihood,
                           **rest)  # fmt: skip


def fit(data: Any = None, prior: Any = None, **rest: Any) -> lm.Fit:
    rest = {"num_samples": 0, **rest}
    data = observe() if data is None else data
    return lm.infer(data, lm.GaussianPrior(1.0) if prior is None else prior, **rest)


def learn(data: Any = None, prior: Any = None, **rest: Any) -> lm.Fit:
    data = observe(likelihood=lm.Gaussian()) if data is None else data
    return lm.maximise_evidence(data, prior, **{"num_samples": 0, **rest})


def refused(call: Call, message: str) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        call()
    assert caught.type is ValueError


def table(*rows: tuple[str, Call]) -> pytest.MarkDecorator:
    names = [f"{number}-{message[:24]}" for number, (message, _) in enumerate(rows)]
    return pytest.mark.parametrize(("message", "call"), rows, ids=names)


@table(
    (r"design must be a lineax operator, got ndarray", lambda: lm.Observations(X, Y)),
    (r"design must be a lineax operator, got list", lambda: lm.Observations([[1.0]], Y)),
    (r"real floats, got dtype complex64", lambda: observe(design=matrix(X + 1j))),
    (r"floats, got dtype float16: cast", lambda: observe(design=matrix(X.astype("f2")))),
    (
        r"floats, got dtype bfloat16: cast",
        lambda: observe(design=matrix(jnp.asarray(X, jnp.bfloat16))),
    ),
    (r"Empty data: the design has 0 outputs", lambda: observe(Y[:0], design=matrix(X[:0]))),
    (r"and 0 parameters", lambda: observe(design=matrix(X[:, :0]))),
    (r"targets has shape \[\(5,\)\].*\[\(6,\)\]", lambda: observe(Y[:5])),
    (r"targets has shape \[\(6, 1\)\].*\[\(6,\)\]", lambda: observe(Y[:, None])),
    (r"targets has shape \[\(6,\)\].*\[\(6, 2\)\]", lambda: observe(Y, design=outputs())),
    (r"targets must have the structure.*'a'", lambda: observe({"a": Y})),
    (r"targets must have the structure.*None", lambda: observe(None)),
    (r"targets must have .*array, not a list", lambda: observe([1.0] * 6)),
    (r"targets must be real numbers.*'a'", lambda: observe(TEXT)),
    (r"targets must be real numbers.*object", lambda: observe(np.array([None] * 6))),
    (r"targets must be real numbers.*complex", lambda: observe(Y + 1j)),
    (r"targets must be real numbers.*bool", lambda: observe(Y > 0)),
    (r"targets must be finite; entry \(3,\) is nan", lambda: observe(put(Y, 3, NAN))),
    (r"targets must be finite; entry \(3,\) is -inf", lambda: observe(put(Y, 3, -np.inf))),
    (r"targets is 1e\+300 where float32", lambda: observe(np.full(6, 1e300))),
    (r"offset must be finite; entry \(1,\) is nan", lambda: observe(offset=put(Y, 1, NAN))),
    (r"offset has shape \[\(5,\)\]", lambda: observe(offset=Y[:5])),
    (r"offset has shape \[\(6, 1\)\]", lambda: observe(offset=Y[:, None])),
    (r"offset has shape \[\(\)\]", lambda: observe(offset=1.0)),
    (r"weights must be one an.*\(6,\), got shape \(5,\)", lambda: observe(weights=np.ones(5))),
    (r"weights must be one an.*\(6, 1\)", lambda: observe(weights=np.ones((6, 1)))),
    (r"weights must be one an.*\(\)", lambda: observe(weights=2.0)),
    (r"weights .*at least 0; entry \(2,\) is -1", lambda: observe(weights=put(Y**2, 2, -1))),
    (r"weights must be finite.*\(2,\) is nan", lambda: observe(weights=put(Y**2, 2, NAN))),
    (r"weights must be real.*complex", lambda: observe(weights=np.ones(6) * 1j)),
    (r"weights must be real.*'a'", lambda: observe(weights=list("abcdef"))),
    (r"likelihood must be one such as .*'gauss'", lambda: observe(likelihood="gauss")),
    (r"likelihood must be one such as .*2\.0", lambda: observe(likelihood=2.0)),
)
def test_observations(message, call):
    refused(call, message)


def _operator(*rows: Any) -> lm.Gaussian:
    return lm.Gaussian(matrix(np.array(rows)))


@table(
    (r"noise_precision .*at least 0; entry \(\) is -1", lambda: lm.Gaussian(-1.0)),
    (r"noise_precision must be finite.*is nan", lambda: lm.Gaussian(NAN)),
    (r"noise_precision must be finite.*is inf", lambda: lm.Gaussian(np.inf)),
    (r"noise_precision.*entry \(1,\) is -1", lambda: lm.Gaussian(np.array([1.0, -1.0]))),
    (r"noise_precision\['a'\].*is -1", lambda: lm.Gaussian({"a": -1.0})),
    (r"noise_precision must be real.*True", lambda: lm.Gaussian(True)),
    (r"noise_precision must be real.*text", lambda: lm.Gaussian("text")),
    (r"noise_precision must be real.*1j", lambda: lm.Gaussian(1j)),
    (r"noise_precision must be real.*object", lambda: lm.Gaussian(object())),
    (r"noise_precision is 1e-320 where", lambda: lm.Gaussian(1e-320)),
    (r"learn=False needs a noise_precision", lambda: lm.Gaussian(learn=False)),
    (r"per_output=True learns", lambda: lm.Gaussian(2.0, per_output=True)),
    (r"or its factor, not both", lambda: lm.Gaussian(2.0, factor=matrix(np.eye(2)))),
    (r"factor must be a lineax operator", lambda: lm.Gaussian(factor=jnp.eye(2))),
    (r"R has 3 rows for 2 columns", lambda: lm.Gaussian(factor=matrix(np.ones((3, 2))))),
    (r"real floats.*complex", lambda: lm.Gaussian(factor=matrix(np.eye(2) * 1j))),
    (r"real floats.*complex", lambda: _operator([1j, 0], [0, 1j])),
    (r"semi-definite.*eigenvalue -1", lambda: _operator([1.0, 2.0], [2.0, 1.0])),
    (r"semi-definite.*eigenvalue 0", lambda: _operator([0.0, 0.0], [0.0, 0.0])),
    (r"not symmetric: entry \(0, 1\) is 0.2.*0.3", lambda: _operator([1.0, 0.2], [0.3, 1.0])),
    (r"finite; entry \(0, 1\) is nan", lambda: _operator([1.0, NAN], [NAN, 1.0])),
    (r"not square: \(1, 2\)", lambda: _operator([1.0, 1.0])),
    (
        r"at least 0; entry \(1,\) is -1",
        lambda: lm.Gaussian(lx.DiagonalLinearOperator(jnp.array([1.0, -1.0]))),
    ),
    (
        r"independent between outputs",
        lambda: lm.Gaussian(matrix(np.eye(2)), learn=True, per_output=True),
    ),
    (
        r"takes \[\(2,\)\]; the targets are \[\(6,\)\]",
        lambda: observe(Y, lm.Gaussian(matrix(np.eye(2)))),
    ),
    (r"shape \(5,\) does not broadcast.*\(6,\)", lambda: observe(Y, lm.Gaussian(np.ones(5)))),
    (r"\(6, 1\) does not broadcast", lambda: observe(Y, lm.Gaussian(np.ones((6, 1))))),
    (r"\(6,\) does not.*operator", lambda: observe(Y2, lm.Gaussian(np.ones(6)), outputs())),
    (r"\(2, 2\) does not.*operator", lambda: observe(Y2, lm.Gaussian(np.eye(2)), outputs())),
    (r"structure PyTreeDef\({'a': \*}\)", lambda: observe(Y, lm.Gaussian({"a": 1.0}))),
    (
        r"weights need noise that is independent",
        lambda: observe(Y, lm.Gaussian(matrix(np.eye(6))), weights=np.ones(6)),
    ),
    (
        r"factor of the noise precision must be finite",
        lambda: fit(observe(Y, lm.Gaussian(factor=matrix(np.full((6, 6), NAN))))),
    ),
)
def test_noise(message, call):
    refused(call, message)


def _with(**prior: Any) -> lm.Fit:
    return fit(prior=lm.GaussianPrior(prior.pop("alpha", 1.0), prior.pop("factor", None), **prior))


@table(
    (r"alpha must be positive, got -1", lambda: lm.GaussianPrior(-1.0)),
    (r"alpha must be positive, got 0", lambda: lm.GaussianPrior(0.0)),
    (r"alpha must be finite.*nan", lambda: lm.GaussianPrior(NAN)),
    (r"alpha must be finite.*inf", lambda: lm.GaussianPrior(np.inf)),
    (r"alpha must be real.*text", lambda: lm.GaussianPrior("text")),
    (r"alpha must be real.*1j", lambda: lm.GaussianPrior(1j)),
    (r"alpha is 1e-320 where", lambda: lm.GaussianPrior(1e-320)),
    (r"alpha must be positive, got \[ 1. -2.\]", lambda: lm.GaussianPrior([1.0, -2.0])),
    (r"alpha must be a scalar or \(L,\).*\(2, 2\)", lambda: lm.GaussianPrior(np.ones((2, 2)))),
    (r"alpha must be a scalar or \(L,\).*\(0,\)", lambda: lm.GaussianPrior(np.ones(0))),
    (r"alpha has 2 entries for 1 groups", lambda: _with(alpha=[1.0, 2.0])),
    (r"alpha has 3 entries", lambda: _with(alpha=np.ones(3), groups=np.array([0, 1, 1]))),
    (r"groups must be 0 … L−1.*\[0 2\]", lambda: _with(groups=np.array([0, 2, 2]))),
    (r"groups must be 0 … L−1.*\[-1  0\]", lambda: _with(groups=np.array([0, -1, 0]))),
    (r"groups must be integers.*1.5", lambda: _with(groups=np.array([0, 1.5, 1]))),
    (r"groups must be integers.*nan", lambda: _with(groups=np.array([0, NAN, 1]))),
    (r"groups must be integers.*'a'", lambda: _with(groups=np.array(list("abc")))),
    (r"groups does not broadcast.*\(2,\)", lambda: _with(groups=np.array([0, 1]))),
    (r"flat does not broadcast.*\(2,\)", lambda: _with(flat=np.array([True, False]))),
    (r"flat must have .*array, not a list", lambda: _with(flat=[True, False, False])),
    (r"flat must have the structure.*'a'", lambda: _with(flat={"a": True})),
    (r"flat must be bools, got 2", lambda: _with(flat=2)),
    (r"flat must be bools, got intercept", lambda: _with(flat="intercept")),
    (r"flat must be bools.*0\.5", lambda: _with(flat=np.array([0.5, 0, 0]))),
    (r"need a diagonal", lambda: _with(factor=matrix(np.eye(3)), flat=np.arange(3) == 0)),
    (r"need a diagonal", lambda: _with(factor=matrix(np.eye(3)), groups=np.arange(3))),
    (r"factor must be a lineax operator", lambda: _with(factor=jnp.eye(3))),
    (r"factor maps onto 4 numbers, θ has 3", lambda: _with(factor=matrix(np.eye(4)))),
    (r"factor must be finite; entry \(0, 0\)", lambda: _with(factor=matrix(np.eye(3) * NAN))),
    (r"factor must be real.*complex", lambda: _with(factor=matrix(np.eye(3) * 1j))),
    (r"prior mean must be finite; entry \(1,\)", lambda: _with(mean=put(X[0], 1, NAN))),
    (r"prior mean has shape \(2,\), θ \(3,\)", lambda: _with(mean=np.ones(2))),
    (r"prior mean has shape \(\), θ \(3,\)", lambda: _with(mean=1.0)),
    (r"prior mean must be real.*abc", lambda: _with(mean="abc")),
    (r"prior mean must be real.*complex", lambda: _with(mean=np.ones(3) * 1j)),
    (r"prior mean must have .*array, not a list", lambda: _with(mean=[1.0, 1.0, 1.0])),
)
def test_prior(message, call):
    refused(call, message)


_precision = lm.GaussianPrior.from_precision


@table(
    (r"not symmetric", lambda: _precision(np.array([[1, 0.5], [0, 1]]))),
    (r"not positive definite \(eigenvalue -1\)", lambda: _precision(np.array([[1, 2], [2, 1]]))),
    (r"must be square, got shape \(2, 3\)", lambda: _precision(np.ones((2, 3)))),
    (r"must be finite; entry \(0, 0\) is nan", lambda: _precision(np.full((2, 2), NAN))),
    (r"must be real numbers.*complex", lambda: _precision(np.eye(2) * 1j)),
    (r"must be real numbers.*'a'", lambda: _precision(np.array([["a"]]))),
    (r"maps onto 2 numbers, θ has 3", lambda: fit(prior=_precision(np.eye(2)))),
    (r"call it outside jit", lambda: jax.jit(lambda p: _precision(p).alpha)(jnp.eye(3))),
)
def test_dense_prior_precision(message, call):
    refused(call, message)


@pytest.mark.parametrize("side", ["primal", "dual"])
@pytest.mark.parametrize("verb", [fit, learn])
@pytest.mark.parametrize("value", [NAN, np.inf])
def test_design_not_finite(side, verb, value):
    data = observe(
        Y, lm.Gaussian(2.0) if verb is fit else lm.Gaussian(), matrix(put(X, (2, 1), value))
    )
    refused(lambda: verb(data, method=lm.Exact(side)), "design must be finite; row 2, column 1")


@pytest.mark.parametrize("side", ["primal", "dual"])
def test_flat_columns_that_the_data_do_not_determine(side):
    zero, twin = put(X, (slice(None), 0), 0.0), np.c_[X[:, :1], 2 * X[:, :1], X[:, 2:]]
    for design, flat, message in (
        (zero, np.array([True, False, False]), "Flat column 0 .* is zero"),
        (twin, np.array([True, True, False]), "flat columns are linearly dependent"),
        (X[:2], np.ones(3, bool), "flat columns are linearly dependent"),
    ):
        data = observe(Y[: len(design)], design=matrix(design))
        prior = lm.GaussianPrior(1.0, flat=flat)
        refused(lambda d=data, p=prior: fit(d, p, method=lm.Exact(side)), message)


@table(
    (r"alpha is unknown: give a prior", lambda: lm.infer(observe(), num_samples=0)),
    (r"alpha is unknown", lambda: fit(prior=lm.GaussianPrior())),
    (r"noise precision is unknown", lambda: fit(observe(likelihood=lm.Gaussian()))),
    (r"prior must be a GaussianPrior, got 1\.0", lambda: fit(prior=1.0)),
    (r"prior must be a GaussianPrior, got 1\.0", lambda: learn(prior=1.0)),
    (r"Observations or Batched, got tuple", lambda: fit((X, Y))),
    (r"Observations or Batched, got tuple", lambda: learn((X, Y))),
    (r"method must be one such as Exact\(\), got 'exact'", lambda: fit(method="exact")),
    (r"side must be \"primal\", \"dual\" or None, got 'both'", lambda: lm.Exact("both")),
    (r"side of 3 > max_side=2", lambda: fit(method=lm.Exact(max_side=2))),
    (r"needs key=", lambda: fit(num_samples=3)),
    (r"needs key=", lambda: learn(num_samples=3)),
    (r"key must be one key.*got 0", lambda: fit(num_samples=3, key=0)),
    (r"key must be one key.*got seed", lambda: fit(num_samples=3, key="seed")),
    (
        r"key must be one key.*\(3,\)",
        lambda: fit(num_samples=3, key=jax.random.split(jax.random.key(0), 3)),
    ),
    (r"num_samples must be .* got -1", lambda: fit(num_samples=-1)),
    (r"num_samples must be .* got -1", lambda: learn(num_samples=-1)),
    (r"num_samples must be .* got 1\.5", lambda: fit(num_samples=1.5)),
    (r"num_samples must be .* got True", lambda: fit(num_samples=True, key=jax.random.key(0))),
    (r"num_samples must be .* got False", lambda: learn(num_samples=False)),
    (r"max_steps=0", lambda: learn(max_steps=0)),
    (r"tolerance=0\.0", lambda: learn(tolerance=0.0)),
    (r"tolerance=nan", lambda: learn(tolerance=NAN)),
    (r"m_step must be one such as linmodels.m_steps.mackay, got 'em'", lambda: learn(m_step="em")),
    (
        r"m_step made α 2\.0 of \[.*\]: it must be",
        lambda: learn(m_step=lambda _: (2.0, np.ones(1))),
    ),
    (r"m_step made β \[-1\.\] of", lambda: learn(m_step=lambda e: (e.current.alpha, -np.ones(1)))),
    (r"m_step made α \[nan\] of", lambda: learn(m_step=lambda e: (np.full(1, NAN), np.ones(1)))),
    (r"m_step must return α and β, got None", lambda: learn(m_step=lambda _: None)),
)
def test_verbs(message, call):
    refused(call, message)


def _trace(function: Callable[[Any], Any], value: Any) -> Any:
    return jax.jit(function)(jnp.asarray(value))


@table(
    (r"outside jit", lambda: _trace(lambda y: learn(observe(y, lm.Gaussian())).log_evidence, Y)),
    (r"outside jit", lambda: _trace(lambda a: learn(prior=lm.GaussianPrior(a)).log_evidence, 1.0)),
    (
        r"flat must be known",
        lambda: _trace(lambda f: _with(flat=f).log_evidence, np.arange(3) == 0),
    ),
    (r"groups must be known", lambda: _trace(lambda g: _with(groups=g).log_evidence, np.arange(3))),
    (
        r"under jit needs its `factor=`",
        lambda: _trace(lambda b: fit(observe(Y, lm.Gaussian(matrix(b)))).log_evidence, np.eye(6)),
    ),
)
def test_traced_values_that_must_be_known(message, call):
    refused(call, message)


def test_a_mask_is_traced_with_its_prior():
    """An argument of a jitted function, the prior takes its masks along: they too are refused."""
    prior = lm.GaussianPrior(1.0, flat=np.array([True, False, False]))
    refused(lambda: jax.jit(lambda p: fit(prior=p).log_evidence)(prior), "flat must be known")


def _states() -> list[lm.EvidenceState]:
    states: list[lm.EvidenceState] = []
    learn(callback=states.append)
    return states


def test_a_state_of_another_fit():
    """A state that does not fit, or has settled on other data, is no place to go on from."""
    first, *_, last = _states()
    grouped = lm.GaussianPrior.g_prior(groups=np.array([0, 1, 1]))
    other, nan = observe(Y[::-1] ** 3, lm.Gaussian()), replace(first, alpha=np.array([NAN]))
    refused(lambda: learn(prior=grouped, state=first), r"\(1,\).*\(2,\).*another fit")
    refused(lambda: learn(other, state=last), "state has settled, but .*another fit")
    refused(lambda: learn(observe(), state=first), "which is known here: it is of another fit")
    refused(lambda: learn(state=nan), r"state has α \[nan\]")
    refused(lambda: learn(state={"alpha": 1.0}), "must be an EvidenceState, got dict")
    assert learn(state=last).steps == last.step


def test_whole_numbers_are_numbers():
    """Integers for targets, weights, precisions and means are as good as floats."""
    whole = np.arange(6)
    ints = fit(
        observe(whole, lm.Gaussian(2), offset=whole // 2, weights=[1, 2, 1, 1, 0, 1]),
        lm.GaussianPrior(1, mean=np.ones(3, int)),
    )
    real = whole.astype(float)
    floats = fit(
        observe(real, lm.Gaussian(2.0), offset=real // 2, weights=np.array([1.0, 2, 1, 1, 0, 1])),
        lm.GaussianPrior(1.0, mean=np.ones(3)),
    )
    assert ints.log_evidence == floats.log_evidence
    assert ints.posterior.mean.dtype == jnp.float32
    np.testing.assert_array_equal(ints.posterior.mean, floats.posterior.mean)


def test_nothing_observed_is_no_error():
    """Weights or precisions that are all 0 leave the prior; learning flags its start."""
    prior = lm.GaussianPrior(4.0)
    for data in (observe(weights=np.zeros(6)), observe(Y, lm.Gaussian(0.0))):
        nothing = fit(data, prior)
        assert nothing.log_evidence == nothing.effective_dimension == 0
        np.testing.assert_allclose(nothing.posterior.std(), 0.5, rtol=1e-6)
    nothing = learn(observe(Y, lm.Gaussian(), weights=np.zeros(6)), prior)
    assert lm.FlagKind.NOTHING_OBSERVED in {flag.kind for flag in nothing.flags}
    assert nothing.prior.alpha == 4.0
    assert np.isfinite(nothing.likelihood.noise_precision)


def test_an_output_never_observed_is_flagged():
    """One of two outputs without a single observation: its noise is left alone, and flagged."""
    noise = lm.Gaussian(np.array([1.0, 0.0]), learn=True, per_output=True)
    half = learn(observe(Y2, noise, outputs()))
    assert np.isfinite(np.asarray(half.log_evidence))
    assert np.isfinite(np.asarray(half.posterior.mean)).all()
    assert lm.Flag(lm.FlagKind.NOTHING_OBSERVED, 1) in half.flags
