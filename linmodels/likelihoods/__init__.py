"""Likelihoods of the targets given the model's outputs f = o + Φθ, one a file."""

from linmodels.likelihoods._bernoulli import Bernoulli as Bernoulli
from linmodels.likelihoods._categorical import Categorical as Categorical
from linmodels.likelihoods._expansion import QuadraticExpansion as QuadraticExpansion
from linmodels.likelihoods._gaussian import LOG_2PI as LOG_2PI
from linmodels.likelihoods._gaussian import Gaussian as Gaussian
from linmodels.likelihoods._likelihood import AbstractCurved as AbstractCurved
from linmodels.likelihoods._likelihood import AbstractLikelihood as AbstractLikelihood
from linmodels.likelihoods._likelihood import AbstractQuadratic as AbstractQuadratic
from linmodels.likelihoods._poisson import Poisson as Poisson

__all__ = [
    "LOG_2PI",
    "AbstractCurved",
    "AbstractLikelihood",
    "AbstractQuadratic",
    "Bernoulli",
    "Categorical",
    "Gaussian",
    "Poisson",
    "QuadraticExpansion",
]
