"""Random small problems, for the library and for the oracle.

Shapes are few, so that compilations are shared; everything else varies.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import lineax as lx
import numpy as np
from hypothesis import strategies as st

import linmodels as lm
from laws import dense
from linmodels.operators import from_matrix

SHAPES = {"tall": (9, 1, 4), "wide": (4, 1, 9), "outputs": (5, 2, 4), "one": (1, 1, 4)}
"""n observations, m outputs, d' parameters; the last has one observation"""
COLUMN = {"one column": (9, 1, 1)}
DESIGNS = ("full", "deficient", "zero")
NOISES = ("scalar", "entries", "per output", "singular")
PRIORS = ("isotropic", "diagonal", "dense", "g", "flat", "groups", "everything")
EXTREMES = (None, "column", "targets", "alpha", "noise")


class Layout(NamedTuple):
    """What decides the compiled program: everything but numbers."""

    n: int
    m: int
    d: int
    noise: str
    prior: str

    @property
    def flat(self):
        """Which parameters are flat: the first."""
        return np.arange(self.d) < (self.prior in ("flat", "everything") and self.d > 1)

    @property
    def groups(self):
        """Group of every parameter: alternating."""
        grouped = self.prior in ("groups", "everything") and self.d > 2
        return np.arange(self.d) % 2 if grouped else np.zeros(self.d, int)

    @property
    def output(self):
        """Which noise precision an entry has."""
        return np.tile(np.arange(self.m), self.n) * (self.noise == "per output")

    @property
    def target_shape(self):
        return (self.n,) if self.m == 1 else (self.n, self.m)


class Arrays(NamedTuple):
    """The numbers of a problem, in the working dtype."""

    design: np.ndarray
    targets: np.ndarray
    offset: np.ndarray
    weights: np.ndarray
    precision: np.ndarray
    """B₀ as the likelihood takes it"""
    mean: np.ndarray
    root: np.ndarray
    """F: (d,) or (d, d)"""
    alpha: np.ndarray
    """(L,)"""
    beta: np.ndarray
    """(C,)"""


class Problem(NamedTuple):
    layout: Layout
    arrays: Arrays


def observations(layout, arrays, learn=True):
    """The data, with B = βB₀ to be learned or, with `learn=False`, B₀."""
    shape = jax.ShapeDtypeStruct(layout.target_shape, arrays.design.dtype)
    design = from_matrix(arrays.design, out_structure=shape)
    per_output = learn and layout.noise == "per output"
    if layout.noise == "singular":
        likelihood = lm.Gaussian(
            factor=lx.MatrixLinearOperator(jnp.asarray(arrays.precision)), learn=learn
        )
    else:
        likelihood = lm.Gaussian(arrays.precision, learn=learn, per_output=per_output)
    targets, offset = (jnp.reshape(v, shape.shape) for v in (arrays.targets, arrays.offset))
    return lm.Observations(design, targets, likelihood, offset, arrays.weights)


def prior(layout, arrays):
    """The prior, with labels known before tracing."""
    alpha = arrays.alpha if len(arrays.alpha) > 1 else arrays.alpha[0]
    labels = {"mean": jnp.asarray(arrays.mean)}
    if layout.flat.any():
        labels["flat"] = layout.flat
    if layout.groups.any():
        labels["groups"] = layout.groups
    if layout.prior in ("g", "everything"):
        return lm.GaussianPrior.g_prior(alpha, **labels)
    if layout.prior == "isotropic":
        return lm.GaussianPrior(alpha, **labels)
    operator = lx.MatrixLinearOperator if layout.prior == "dense" else lx.DiagonalLinearOperator
    return lm.GaussianPrior(alpha, operator(jnp.asarray(arrays.root)), **labels)


def unit_noise(problem):
    """√w R₀, B₀ with weights, and the log of its density's constant."""
    layout, arrays = problem.layout, as_float64(problem.arrays)
    entry_weights = np.repeat(arrays.weights, layout.m)
    if layout.noise == "singular":
        factor = arrays.precision
        block = factor.T @ factor
        values = np.linalg.svd(factor)[1]
        rank = len(factor) / layout.m
        constant = np.full(layout.n * layout.m, 2 * np.log(values).sum() / layout.m)
    else:
        diagonal = np.broadcast_to(arrays.precision, layout.target_shape).ravel()
        block, rank = None, diagonal > 0
        constant = np.log(diagonal, where=rank, out=np.zeros(len(diagonal)))
    matrix = np.diag(diagonal) if block is None else np.kron(np.eye(layout.n), block)
    half = np.sqrt(entry_weights)
    return half[:, None] * matrix * half, entry_weights * rank, entry_weights @ constant


def as_float64(arrays):
    return Arrays(*(np.asarray(a, np.float64) for a in arrays))


class Parts(NamedTuple):
    """A problem for the oracle, in float64."""

    design: np.ndarray
    targets: np.ndarray
    """y − o − Φμ"""
    noise: np.ndarray
    prior: np.ndarray
    log_noise: float
    units: np.ndarray
    """(d, d) F α^{-½}; a flat parameter's unit is its spread at known other parameters"""
    spread: np.ndarray
    """units, but flat parameters also vary as the prior of the others makes them"""
    magnitude: float
    """norm of the whitened |y| + |o| + |Φ||μ|, of which rounding errors are a multiple"""
    root: np.ndarray
    """R of βB₀, symmetric"""


def parts(problem):
    """Everything dense, β and α put in."""
    layout, arrays = problem.layout, as_float64(problem.arrays)
    base, rank, constant = unit_noise(problem)
    beta = arrays.beta[layout.output]
    noise = np.sqrt(beta)[:, None] * base * np.sqrt(beta)
    units, precision = prior_matrices(problem, base, noise)
    sizes = abs(arrays.targets) + abs(arrays.offset) + abs(arrays.design) @ abs(arrays.mean)
    half = dense.root(noise)
    return Parts(
        design=arrays.design,
        targets=arrays.targets - arrays.offset - arrays.design @ arrays.mean,
        noise=noise,
        prior=precision,
        log_noise=0.5 * (constant + rank @ np.log(beta / (2 * np.pi))),
        units=units,
        spread=prior_spread(arrays.design, noise, units, layout.flat),
        magnitude=np.linalg.norm(abs(half) @ sizes),
        root=half,
    )


def prior_matrices(problem, base, noise):
    """F α^{-½} and the precision A."""
    layout, arrays = problem.layout, as_float64(problem.arrays)
    flat = layout.flat
    root = np.diag(arrays.root) if arrays.root.ndim == 1 else arrays.root
    if layout.prior in ("g", "everything"):
        root = np.diag(g_prior_scale(arrays.design, base, flat))
    if layout.prior == "isotropic":
        root = np.eye(layout.d)
    units = root * arrays.alpha[layout.groups] ** -0.5
    inverse = np.linalg.inv(units)
    precision = inverse.T @ inverse
    precision[flat] = precision[:, flat] = 0
    own = np.diag(arrays.design.T @ noise @ arrays.design)[flat]
    units[flat] = np.diag(np.where(flat, 1.0, 0.0))[flat]
    units[np.ix_(flat, flat)] = np.diag(own**-0.5)
    return units, precision


def prior_spread(design, noise, units, flat):
    """With θ_f = x_f − T θ_p for flat parameters, T their regression on the others."""
    if not flat.any():
        return units
    basis = design[:, flat]
    regression = np.linalg.solve(basis.T @ noise @ basis, basis.T @ noise @ design[:, ~flat])
    spread = units.copy()
    from_others = np.sum((regression * np.diag(units)[~flat]) ** 2, 1)
    spread[np.ix_(flat, flat)] = np.diag(np.sqrt(np.diag(units)[flat] ** 2 + from_others))
    return spread


def g_prior_scale(design, base, flat):
    """diag(M)^{-½} with the flat columns projected out; the median where zero."""
    information = design.T @ base @ design
    if flat.any():
        cross = information[:, flat]
        information = information - cross @ np.linalg.solve(
            information[np.ix_(flat, flat)], cross.T
        )
    diagonal = np.diag(information)
    # A random column is never this close to a flat one: what is left is rounding.
    seen = (diagonal > 1e-9 * np.diag(design.T @ base @ design)) & ~flat
    typical = np.median(diagonal[seen]) if seen.any() else 1.0
    return np.where(seen, diagonal, typical) ** -0.5


def well_posed(problem):
    """Whether float64 can tell: columns of [W; P], scaled to norm 1, are independent."""
    given = parts(problem)
    penalty = given.units.T @ given.prior @ given.units
    stacked = np.concatenate([given.root @ given.design @ given.units, penalty])
    return np.linalg.svd(stacked / np.linalg.norm(stacked, axis=0))[1][-1] > 1e-6


def answer(problem):
    """The oracle's answer, with the mean as θ − μ."""
    given = parts(problem)
    return dense.solve(given.design, given.targets, given.noise, given.prior, given.log_noise)


@st.composite
def problems(draw, shapes=SHAPES, priors=PRIORS, noises=NOISES, extremes=EXTREMES):
    """One problem; at most one of its scales is extreme, by 10^-9 to 10^9."""
    n, m, d = draw(st.sampled_from([shapes[name] for name in shapes]))
    allowed = [noise for noise in noises if m > 1 or noise != "singular"]
    layout = Layout(n, m, d, draw(st.sampled_from(allowed)), draw(st.sampled_from(list(priors))))
    kind = draw(st.sampled_from(DESIGNS))
    generator = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    arrays = random_arrays(layout, kind, generator)
    extreme = draw(st.sampled_from(list(extremes)))
    scale = 10.0 ** draw(st.integers(-9, 9)) if extreme else 1.0
    return Problem(layout, cast(scaled(arrays, extreme, scale)))


def random_arrays(layout, kind, generator):
    """Numbers of order one, in float64."""
    n, m, d = layout.n, layout.m, layout.d
    normal, positive = generator.standard_normal, lambda *s: generator.uniform(0.5, 2.0, s)
    weights = generator.choice([0.5, 1.0, 2.0], n)
    weights[: n // 4] = 0.0  # the others still see every flat parameter
    root = positive(d)
    if layout.prior == "dense":
        root = np.linalg.cholesky(np.eye(d) + 0.1 * np.cov(normal((d, 2 * d))))
    return Arrays(
        design=random_design(layout, kind, generator),
        targets=normal(n * m),
        offset=normal(n * m) * generator.choice([0.0, 1.0]),
        weights=weights if generator.integers(2) else np.ones(n),
        precision=random_precision(layout, generator),
        mean=normal(d) * generator.choice([0.0, 1.0]),
        root=root,
        alpha=positive(int(layout.groups.max()) + 1),
        beta=positive(int(layout.output.max()) + 1),
    )


def random_design(layout, kind, generator):
    rows, d = layout.n * layout.m, layout.d
    design = generator.standard_normal((rows, d))
    if kind == "zero":
        design = np.zeros((rows, d))
    elif kind == "deficient":
        design[:, -1] = 0.0
        design[:, d // 2] = design[:, d // 2 - 1] if d // 2 - 1 > 0 else 0.0
    design[:, layout.flat] = 1.0
    return design


def random_precision(layout, generator):
    """B₀: a scalar, an array with unobserved entries, one an output, or a singular factor."""
    if layout.noise == "singular":
        return generator.standard_normal((1, layout.m))
    if layout.noise == "scalar":
        return np.array(generator.uniform(0.5, 2.0))
    precision = generator.uniform(0.5, 2.0, layout.target_shape)
    precision[layout.n // 2 : -1] *= generator.choice([0.0, 1.0])
    return precision


def scaled(arrays, extreme, scale):
    """One column, the targets, α or β times `scale`."""
    if extreme == "column":
        factors = np.where(np.arange(arrays.design.shape[1]) == 1, scale, 1.0)
        return arrays._replace(design=arrays.design * factors)
    name = {"targets": "targets", "alpha": "alpha", "noise": "beta", None: "beta"}[extreme]
    return arrays._replace(**{name: getattr(arrays, name) * scale})


def cast(arrays):
    """In the working dtype: float64 where JAX has it, else float32."""
    dtype = np.dtype(jnp.result_type(float))
    return Arrays(*(np.asarray(a, dtype) for a in arrays))
