"""What is chosen, and why."""

import jax
import jax.numpy as jnp
import lineax as lx
import numpy as np
import pytest

import linmodels as lm


def data(n, d):
    """Never multiplied: a plan looks at sizes."""
    shapes = jax.ShapeDtypeStruct((d,), jnp.float32)
    operator = lx.FunctionLinearOperator(lambda x: jnp.zeros(n) + jnp.sum(x), shapes)
    return lm.Observations(operator, jnp.ones(n))


@pytest.mark.parametrize(
    ("n", "d", "kind", "side"),
    [
        (100_000, 500, lm.Exact, "primal"),
        (500, 100_000, lm.Exact, "dual"),
        (5_000, 100_000, lm.BlockCG, "dual"),
        (100_000, 5_000, lm.BlockCG, "primal"),
        (4_000, 4_000, lm.Exact, "primal"),
    ],
)
def test_method_and_side(n, d, kind, side):
    chosen = lm.plan(data(n, d))
    assert isinstance(chosen.method, kind)
    assert chosen.side == side
    assert f"{n:,} outputs" in chosen.reason
    assert chosen.memory > 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((np.ones((3, 2)),), "data must be Observations or Batched, got ndarray"),
        ((data(3, 2), 1.0), "prior must be a GaussianPrior, got 1.0"),
        ((data(3, 2), None, -1), "num_samples must be an integer of at least 0, got -1"),
    ],
)
def test_wrong_arguments(arguments, message):
    with pytest.raises(ValueError, match=message):
        lm.plan.__wrapped__(*arguments)  # without the types that tests enforce


def test_batches_count_all_rows():
    rows = lm.RowSlices(np.ones((5_000, 3), np.float32), batch_size=1_000)
    batched = lm.Batched(rows, lambda x: data(len(x), 4_500))
    chosen = lm.plan(batched)
    assert isinstance(chosen.method, lm.BlockCG)
    assert "5,000 outputs" in chosen.reason


def test_a_fit_keeps_the_plan_that_it_followed():
    x = jnp.linspace(-1, 1, 20)[:, None]
    observed = lm.Observations(lx.MatrixLinearOperator(x), x[:, 0], lm.Gaussian(4.0))
    fits = [
        lm.infer(observed, lm.GaussianPrior(1.0), method=method, num_samples=0)
        for method in (None, lm.Exact())
    ]
    assert fits[0].plan == lm.plan(observed, num_samples=0)
    assert fits[1].plan is None
    assert fits[0].plan.cost == "1 pass, about 40 bytes beside the data, less than a second"
    assert str(fits[0].plan) == f"{fits[0].plan.reason}; {fits[0].plan.cost}"


SPECTRA = {
    "1e5/i": lambda i: 1e5 / i,
    "1e3/i": lambda i: 1e3 / i,
    "1e5/i²": lambda i: 1e5 / i**2,
    "constant": lambda i: 1e3 * i**0,
}


@pytest.mark.slow
@pytest.mark.parametrize(("name", "num_samples"), [*((n, 16) for n in SPECTRA), ("1e5/i", 64)])
def test_passes_within_a_factor_of_two(name, num_samples):
    """A probe foresees what block-CG takes; the last check of the residual may be in it or not."""
    values = SPECTRA[name](np.arange(1.0, 4_501.0))
    rng = np.random.default_rng(0)
    targets = np.sqrt(values) * rng.standard_normal(len(values)) + rng.standard_normal(len(values))
    design = lx.DiagonalLinearOperator(jnp.asarray(np.sqrt(values), jnp.float32))
    observed = lm.Observations(design, jnp.asarray(targets, jnp.float32), lm.Gaussian(1.0))
    prior, keys = lm.GaussianPrior(1.0), jax.random.split(jax.random.key(0))
    chosen = lm.plan(observed, prior, num_samples, key=keys[0])
    fit = lm.infer(observed, prior, num_samples=num_samples, key=keys[1], throw=False)
    assert fit.solver.passes / 2 - 1 <= chosen.passes <= 2 * fit.solver.passes
    assert chosen.seconds > 0


@pytest.mark.slow
def test_several_strengths_are_not_probed():
    observed = data(5_000, 4_500)
    prior = lm.GaussianPrior(groups=np.arange(4_500) % 2)
    chosen = lm.plan(observed, prior, key=jax.random.key(0))
    assert chosen.passes is None
    assert "pass" not in str(chosen)


def test_without_samples_only_exact_is_left():
    assert isinstance(lm.plan(data(5_000, 5_000), num_samples=0).method, lm.Exact)


@pytest.mark.slow
def test_default_beyond_exact_sizes_is_block_cg():
    """A product of 5,000 numbers with their own scale: nothing of side 5,000 is factorised."""
    scale = jnp.linspace(0.5, 2.0, 5_000)
    operator = lx.DiagonalLinearOperator(scale)
    observed = lm.Observations(operator, scale * 1.5, lm.Gaussian(4.0))
    fit = lm.infer(observed, lm.GaussianPrior(1.0), num_samples=4, key=jax.random.key(0))
    assert isinstance(fit.method, lm.BlockCG)
    expected = 4 * scale**2 * 1.5 / (1 + 4 * scale**2)
    # ε² = 1/(8k): the mean's squared error is below γ/(8k) = 5,000/32 in the H-norm.
    error = jnp.sum((1 + 4 * scale**2) * (fit.posterior.mean - expected) ** 2)
    assert error <= fit.effective_dimension / (8 * 4)
    assert (
        fit.solver.certificate <= fit.solver.tolerance
        or fit.solver.estimate <= fit.solver.tolerance
    )
