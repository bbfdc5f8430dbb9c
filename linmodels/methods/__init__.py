"""Methods of inference, one a file."""

from linmodels.methods._equations import pull as pull
from linmodels.methods._evidence_path import EvidencePath as EvidencePath
from linmodels.methods._evidence_path import PathPoints as PathPoints
from linmodels.methods._evidence_terms import EvidenceTerms as EvidenceTerms
from linmodels.methods._look import look_once as look_once
from linmodels.methods._method import AbstractMethod as AbstractMethod
from linmodels.methods._method import AbstractSystem as AbstractSystem
from linmodels.methods._method import DescentReport as DescentReport
from linmodels.methods._method import Evaluation as Evaluation
from linmodels.methods._method import GradientVariances as GradientVariances
from linmodels.methods._method import Hyperparameters as Hyperparameters
from linmodels.methods._method import Mean as Mean
from linmodels.methods._method import Scales as Scales
from linmodels.methods._method import Solution as Solution
from linmodels.methods._method import SolverReport as SolverReport
from linmodels.methods._sketch import Carried as Carried
from linmodels.methods.block_cg import BlockCG as BlockCG
from linmodels.methods.exact import Exact as Exact
from linmodels.methods.matheron import Matheron as Matheron
from linmodels.methods.sample_then_optimise import SampleThenOptimise as SampleThenOptimise

__all__ = [
    "AbstractMethod",
    "AbstractSystem",
    "BlockCG",
    "DescentReport",
    "Evaluation",
    "EvidencePath",
    "EvidenceTerms",
    "Exact",
    "GradientVariances",
    "Hyperparameters",
    "Matheron",
    "Mean",
    "PathPoints",
    "SampleThenOptimise",
    "Scales",
    "Solution",
    "SolverReport",
]
