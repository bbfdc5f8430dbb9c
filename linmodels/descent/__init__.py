"""Stochastic gradient descent on sums of quadratics, for blocks of vectors."""

from linmodels.descent._averaging import geometric as geometric
from linmodels.descent._averaging import polyak as polyak
from linmodels.descent._descend import Descended as Descended
from linmodels.descent._descend import descend as descend
from linmodels.descent._objective import AbstractObjective as AbstractObjective
from linmodels.descent._objective import Term as Term
from linmodels.descent._recipe import Recipe as Recipe
from linmodels.descent._state import DescentState as DescentState

__all__ = [
    "AbstractObjective",
    "Descended",
    "DescentState",
    "Recipe",
    "Term",
    "descend",
    "geometric",
    "polyak",
]
