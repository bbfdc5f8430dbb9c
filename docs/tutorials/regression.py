# # Regression: a gap in the data
#
# Two networks are trained on ten years of CO₂ at Mauna Loa with two years left out. Each gets error
# bars, the evidence says which of the two is better, and the years left out show whether both told
# the truth. This page is a program: `python docs/tutorials/regression.py`.

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax

import linmodels as lm
import linmodels_nn as nn
from linmodels.data import load_co2

# ## Data
#
# Every second week of the nineties, less a straight line. Networks are trained best on numbers of
# order one: time is counted in units of five years from 1995.

weeks = load_co2()
years = 1970 + weeks.date.astype("datetime64[D]").astype(float) / 365.2425
chosen = (years > 1990) & (years < 2000) & ~np.isnan(weeks.co2)
years, co2 = years[chosen][::2], weeks.co2[chosen][::2]
line = np.polynomial.Polynomial.fit(years, co2, 1)
targets = (co2 - line(years)).astype("float32")
gap = (years > 1995) & (years < 1997)

# ## Two networks
#
# The first is given the time, the second also where in the year it is. Both have three inputs, of
# which the first finds two blank.

season = 2 * np.pi * years
full = np.stack([(years - 1995) / 5, np.cos(season), np.sin(season)], axis=1).astype("float32")
inputs = {"time": full * np.float32([1, 0, 0]), "time and season": full}

STEPS = 1_500
optimiser = optax.adam(optax.cosine_decay_schedule(1e-2, STEPS))


@eqx.filter_jit
def step(network, state, x, y):
    def loss(network):
        weights = eqx.filter(network, eqx.is_inexact_array)
        error = jnp.mean((jax.vmap(network)(x) - y) ** 2)
        return error + 1e-3 * optax.tree.norm(weights, squared=True)

    updates, state = optimiser.update(eqx.filter_grad(loss)(network), state)
    return eqx.apply_updates(network, updates), state


def trained(x, y):
    network = eqx.nn.MLP(3, "scalar", 16, 2, activation=jnp.tanh, key=jax.random.key(0))
    state = optimiser.init(eqx.filter(network, eqx.is_inexact_array))
    for _ in range(STEPS):
        network, state = step(network, state, x, y)
    return network


networks = {name: trained(x[~gap], targets[~gap]) for name, x in inputs.items()}

# ## Error bars
#
# One call each. The strength of the prior on the weights and the noise of the measurements are
# learned by maximising the evidence; nothing is set aside for validation.

fitted = {
    name: nn.laplace(networks[name], (x[~gap], targets[~gap]), lm.Gaussian(), key=jax.random.key(1))
    for name, x in inputs.items()
}
in_gap = {name: fitted[name].predict(x[gap]) for name, x in inputs.items()}
at_data = {name: fitted[name].predict(x[~gap]) for name, x in inputs.items()}
noise = {name: float(f.fit.likelihood.noise_precision) ** -0.5 for name, f in fitted.items()}

for name in inputs:
    data, gap_std = at_data[name].std().mean(), in_gap[name].std().mean()
    print(f"{name}: noise {noise[name]:.2f} ppm")
    print(f"  the curve is known to {data:.2f} ppm at the data, to {gap_std:.2f} ppm in the gap")
    assert gap_std > data

# The network without the season takes it for noise: about 2 ppm, against 0.5.

assert noise["time"] > 2 * noise["time and season"]

# ## Which network?
#
# The evidence answers without the years left out. They agree.

for name in inputs:
    joint = in_gap[name].joint_log_prob(targets[gap])
    print(f"{name}: log evidence {fitted[name].log_evidence:.0f}, of the gap {joint:.0f} nats")

better, worse = fitted["time and season"], fitted["time"]
assert better.log_evidence > worse.log_evidence
assert in_gap["time and season"].joint_log_prob(targets[gap]) > in_gap["time"].joint_log_prob(
    targets[gap]
)

# ## How honest?
#
# Of new measurements, noise included, nine in ten should lie inside `interval(0.9)`. At the data
# they do. In the gap it is about seven in ten: CO₂ also wanders from year to year, and no network
# that has not seen those two years can tell. Error bars are those of a model, and as good as it is.

for where, predictions, rows in (("at the data", at_data, ~gap), ("in the gap", in_gap, gap)):
    lower, upper = predictions["time and season"].interval(0.9)
    inside = lm.metrics.coverage(jnp.asarray(targets[rows]), lower, upper)
    print(f"{where}: {inside:.0%} inside")
    assert inside > 0.5

# ## Joint samples
#
# Errors in the gap go together: if the curve is too high in one week, so it is in the next. How
# well the mean over the two years is known follows from joint samples of the curve, and is not what
# independent errors would make of it.

curves = in_gap["time and season"].samples()
of_mean = curves.mean(axis=1).std()
independent = in_gap["time and season"].std().mean() / np.sqrt(gap.sum())
print(f"mean over the gap: ± {of_mean:.2f} ppm, were errors independent ± {independent:.2f} ppm")
assert of_mean > independent

# More of it: [networks](../networks.md), and [classes](classification.py).
