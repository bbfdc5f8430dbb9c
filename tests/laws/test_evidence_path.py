"""The evidence at every α and β: exact from eigenvectors, with error bars from a Krylov space."""

import jax
import jax.numpy as jnp
import lineax as lx
import numpy as np
import pytest

import linmodels as lm
from laws.problems import Layout, Problem, answer, cast, observations, prior, random_arrays
from laws.tolerances import working_epsilon
from linmodels.krylov import RitzPairs

LAYOUTS = [
    Layout(9, 1, 4, "entries", "diagonal"),
    Layout(9, 1, 4, "scalar", "flat"),
    Layout(4, 1, 9, "scalar", "g"),
]
METHODS = [lm.Exact("primal"), lm.Exact("dual"), lm.BlockCG("primal"), lm.BlockCG("dual")]
CASES = [
    pytest.param(
        layout,
        method,
        id=f"{layout.prior}-{type(method).__name__}-{method.side}",
        # A Krylov space compiles for seconds: one of the fast ones is tall, one wide.
        marks=pytest.mark.slow
        if isinstance(method, lm.BlockCG) and (method.side == "dual" or layout.prior == "flat")
        else (),
    )
    for layout in LAYOUTS
    for method in METHODS
]
ALPHA, BETA = np.array([0.1, 1.0, 30.0, 1.0]), np.array([1.0, 2.0, 0.5, 1e2])


def dense(problem, alpha, beta):
    arrays = problem.arrays._replace(alpha=np.array([alpha]), beta=np.array([beta]))
    return answer(problem._replace(arrays=arrays))


@pytest.mark.law
@pytest.mark.parametrize(("layout", "method"), CASES)
def test_path(layout, method):
    """Within 5 standard errors of the dense evidence and γ, and 1e-3 for float32."""
    arrays = cast(random_arrays(layout, "full", np.random.default_rng(11)))
    problem = Problem(layout, arrays)
    key = jax.random.key(0)
    path = lm.evidence_path(observations(*problem), prior(*problem), method=method, key=key)
    points = path.at(ALPHA, BETA)
    for i, (alpha, beta) in enumerate(zip(ALPHA, BETA, strict=True)):
        truth = dense(problem, alpha, beta)
        slack = 5 * points.log_evidence_error[i] + 1e-3 * (1 + abs(truth.log_evidence))
        assert abs(points.log_evidence[i] - truth.log_evidence) <= slack
        dimension = truth.dimension[~layout.flat].sum()
        slack = 5 * points.effective_dimension_error[i] + 1e-3
        assert abs(points.effective_dimension[i] - dimension) <= slack
        total = beta * np.sum(np.float64(arrays.targets - arrays.offset) ** 2)
        rounding = 64 * working_epsilon() * total
        assert abs(points.residual[i] * beta - truth.square.sum()) <= rounding


@pytest.mark.slow
def test_known_norms_and_residuals_are_exact():
    """What holds no random probe has no error: ‖x̄‖² and ‖y − Φθ̄‖² as `Exact` has them."""
    problem = Problem(LAYOUTS[0], cast(random_arrays(LAYOUTS[0], "full", np.random.default_rng(2))))
    data, believed, key = observations(*problem), prior(*problem), jax.random.key(1)
    paths = [lm.evidence_path(data, believed, method=m, key=key) for m in METHODS]
    exact, *others = [path.at(ALPHA, BETA) for path in paths]
    for points in others:
        np.testing.assert_allclose(points.norm, exact.norm, rtol=1e-3)
        np.testing.assert_allclose(points.residual, exact.residual, rtol=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize("side", ["primal", "dual"])
def test_a_signal_a_thousand_times_the_noise(side):
    """Smooth features: β λ_max/α is 5e7, beyond 1/ε in float32. Within 5 standard errors of exact.

    What holds no random probe is known as well as the quadratures agree, and to ε of ‖y‖ in the
    residual: 3e-4 of ‖y − Φθ̄‖² here.
    """
    rng = np.random.default_rng(0)
    places = rng.uniform(-1, 1, (300, 2))
    waves, phases = 2 * rng.standard_normal((2, 120)), rng.uniform(0, 2 * np.pi, 120)
    x = (np.sqrt(2 / 120) * np.cos(places @ waves + phases)).astype(np.float32)
    y = np.sin(3 * places[:, 0]) * np.cos(2 * places[:, 1]) + 1e-3 * rng.standard_normal(300)
    data = lm.Observations(lx.MatrixLinearOperator(jnp.asarray(x)), jnp.asarray(y, jnp.float32))
    exact, path = (
        lm.evidence_path(data, lm.GaussianPrior(), method=method, key=jax.random.key(0))
        for method in (lm.Exact(), lm.BlockCG(side))
    )
    truth, found, coarser = (p.at(1.6, 1e6) for p in (exact, path, path.coarser))
    for name in ("residual", "norm"):
        right, value, other = (getattr(point, name)[0] for point in (truth, found, coarser))
        assert abs(value - right) <= abs(value - other) + 1e-3 * right
    error = found.effective_dimension - truth.effective_dimension
    assert abs(error) <= 5 * found.effective_dimension_error
    assert abs(found.log_evidence - truth.log_evidence) <= 5 * found.log_evidence_error
    assert path.settled


@pytest.mark.slow
@pytest.mark.parametrize(
    ("side", "noise"),
    [("primal", lm.Gaussian()), ("dual", lm.Gaussian(0.25))],
    ids=["primal-learned", "dual-known"],
)
def test_block_cg_learns_what_exact_learns(side, noise):
    """α and β within 4 relative standard errors of γ, √(2/(16 γ)) = 6 % each, γ about 37."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((200, 40)).astype(np.float32)
    y = (x @ rng.standard_normal(40) + 2 * rng.standard_normal(200)).astype(np.float32)
    data = lm.Observations(lx.MatrixLinearOperator(jnp.asarray(x)), jnp.asarray(y), noise)
    fits = [
        lm.maximise_evidence(data, method=m, num_samples=16, key=jax.random.key(0))
        for m in (lm.Exact(), lm.BlockCG(side))
    ]
    ratio = np.log(float(fits[1].prior.alpha / fits[0].prior.alpha))
    assert abs(ratio) <= 0.24
    assert abs(np.log(float(fits[1].noise_scale[0] / fits[0].noise_scale[0]))) <= 0.24
    assert fits[1].result == lm.RESULTS.successful
    error = float(fits[1].log_evidence_error)
    assert abs(float(fits[1].log_evidence - fits[0].log_evidence)) <= 5 * error


@pytest.mark.slow
def test_groups_learn_by_sampling():
    """Two groups of unlike strength: α within 4 standard errors, √(2/(64 γ_l)) = 4 % and 9 %."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((300, 40)).astype(np.float32)
    strength = np.repeat([1.0, 0.2], 20)
    y = (x @ (strength * rng.standard_normal(40)) + rng.standard_normal(300)).astype(np.float32)
    data = lm.Observations(lx.MatrixLinearOperator(jnp.asarray(x)), jnp.asarray(y))
    believed = lm.GaussianPrior(groups=np.repeat([0, 1], 20))
    fits = [
        lm.maximise_evidence(data, believed, method=m, num_samples=64, key=jax.random.key(0))
        for m in (lm.Exact(), lm.BlockCG())
    ]
    ratio = np.abs(np.log(np.asarray(fits[1].prior.alpha / fits[0].prior.alpha)))
    assert (ratio <= 4 * np.sqrt(2 / (64 * np.array([19.0, 12.0])))).all()
    assert fits[1].result == lm.RESULTS.successful


def test_several_strengths_have_no_path():
    data = lm.Observations(lx.MatrixLinearOperator(jnp.ones((3, 2))), jnp.ones(3))
    believed = lm.GaussianPrior(groups=np.array([0, 1]))
    for method in (lm.Exact(), lm.BlockCG()):
        with pytest.raises(ValueError, match="here are 2 groups and 1 noise precisions"):
            lm.evidence_path(data, believed, method=method, key=jax.random.key(0))


def test_one_probe_knows_its_error():
    """Var uᵀSu = 2 Σ s²: γ within 5 standard errors, which are finite."""
    scale = jnp.linspace(0.5, 5.0, 30)
    data = lm.Observations(lx.DiagonalLinearOperator(scale), scale)
    path = lm.evidence_path(
        data, lm.GaussianPrior(), method=lm.BlockCG(), num_samples=1, key=jax.random.key(0)
    )
    point = path.at(2.0, 1.0)
    shrunk = np.asarray(scale**2 / (2 + scale**2), np.float64)
    # One draw knows its own variance to about a factor of two here.
    spread = np.sqrt(2 * np.sum((shrunk - shrunk.mean()) ** 2))  # of a probe on the sphere
    assert 0.5 < point.effective_dimension_error / spread < 2
    assert abs(point.effective_dimension - shrunk.sum()) <= 5 * point.effective_dimension_error


@pytest.mark.slow
@pytest.mark.parametrize(("power", "available", "taken"), [(1, 64, 64), (1, 16, 11)])
def test_a_small_dimension_takes_more_probes(power, available, taken):
    """Of 26: from k probes γ is known to √(2/(k γ)) or better, here within 4 of those."""
    x = np.random.default_rng(0).standard_normal((300, 200)) / np.arange(1, 201) ** power
    targets = x.sum(1) + np.random.default_rng(1).standard_normal(300)
    design = lx.MatrixLinearOperator(jnp.asarray(x, "float32"))
    data = lm.Observations(design, jnp.asarray(targets, "float32"), lm.Gaussian(1.0))
    paths = [
        lm.evidence_path(
            data, lm.GaussianPrior(), method=method, num_samples=available, key=jax.random.key(0)
        )
        for method in (lm.BlockCG("primal"), lm.Exact())
    ]
    assert len(paths[0].multiplicities) == taken
    ratio = paths[1].strongest_signal(1.0)
    found, exact = (float(path.at(1.0, ratio).effective_dimension[0]) for path in paths)
    assert abs(found / exact - 1) <= 4 * np.sqrt(2 / (taken * exact))


@pytest.mark.slow
def test_a_path_that_has_not_settled_is_said():
    """Three passes do not tell a spectrum over six decades."""
    rng = np.random.default_rng(0)
    scale = jnp.asarray(np.logspace(0, -3, 2_000), jnp.float32)
    y = scale * rng.standard_normal(2_000) + 0.01 * rng.standard_normal(2_000)
    data = lm.Observations(lx.DiagonalLinearOperator(scale), jnp.asarray(y, jnp.float32))
    method = lm.BlockCG(max_passes=3)
    fit = lm.maximise_evidence(
        data, lm.GaussianPrior(), method=method, num_samples=2, key=jax.random.key(0), throw=False
    )
    assert fit.result == lm.RESULTS.max_passes_reached


@pytest.mark.slow
@pytest.mark.parametrize("shape", [(500, 700), (700, 500)], ids=["dual", "primal"])
def test_the_solve_behind_a_path_knows_its_space(shape, monkeypatch):
    """Fewer passes for the same draws, both within ε²γ of the exact ones in the H-norm."""
    rng = np.random.default_rng(0)
    left, right = (np.linalg.qr(rng.standard_normal((n, 500)))[0] for n in shape)
    design = (left * np.geomspace(300, 0.1, 500)) @ right.T
    targets = design @ rng.standard_normal(shape[1]) + rng.standard_normal(shape[0])
    operator = lx.MatrixLinearOperator(jnp.asarray(design, jnp.float32))
    data = lm.Observations(operator, jnp.asarray(targets, jnp.float32))
    learn = lambda: lm.maximise_evidence(
        data, lm.GaussianPrior(), method=lm.BlockCG(), num_samples=16, key=jax.random.key(0)
    )
    knowing = learn()
    monkeypatch.setattr(RitzPairs, "known", lambda *_: None)
    alone = learn()
    assert knowing.solver.passes <= alone.solver.passes / 2
    np.testing.assert_array_equal(knowing.prior.alpha, alone.prior.alpha)
    alpha, beta = float(alone.prior.alpha), float(alone.noise_scale[0])
    apart = np.asarray(knowing.posterior.deviations - alone.posterior.deviations, np.float64)
    squares = alpha * np.sum(apart**2, 1) + beta * np.sum((apart @ design.T) ** 2, 1)
    assert squares.mean() <= 4 * float(alone.effective_dimension) / (8 * 16)
