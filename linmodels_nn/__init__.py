"""Neural networks as linear models: built on the public names of `linmodels` alone."""

from linmodels_nn._laplace import Laplace as Laplace
from linmodels_nn._laplace import laplace as laplace
from linmodels_nn._linearise import Linearised as Linearised
from linmodels_nn._linearise import linearise as linearise
from linmodels_nn.jacobian import Jacobian as Jacobian
