"""Bayesian linear models of any size, touching the design matrix only through products."""

from linmodels import effective_dimension as effective_dimension
from linmodels import krylov as krylov
from linmodels import metrics as metrics
from linmodels import operators as operators
from linmodels._columns import ColumnMoments as ColumnMoments
from linmodels._columns import ColumnScaling as ColumnScaling
from linmodels._columns import block_moments as block_moments
from linmodels._columns import merge_moments as merge_moments
from linmodels._columns import standardise as standardise
from linmodels._columns import unstandardise as unstandardise
from linmodels._columns import unstandardising_matrix as unstandardising_matrix
from linmodels._em import EvidenceState as EvidenceState
from linmodels._em import maximise_evidence as maximise_evidence
from linmodels._evidence_path import evidence_path as evidence_path
from linmodels._infer import Fit as Fit
from linmodels._infer import FitError as FitError
from linmodels._infer import infer as infer
from linmodels._infer import log_evidence as log_evidence
from linmodels._leave_one_out import LeaveOneOut as LeaveOneOut
from linmodels._leave_one_out import leave_one_out as leave_one_out
from linmodels._likelihoods import Gaussian as Gaussian
from linmodels._observations import Batched as Batched
from linmodels._observations import Observations as Observations
from linmodels._observations import RowSlices as RowSlices
from linmodels._plan import Plan as Plan
from linmodels._plan import plan as plan
from linmodels._posterior import Posterior as Posterior
from linmodels._posterior import Summary as Summary
from linmodels._prediction import Prediction as Prediction
from linmodels._priors import GaussianPrior as GaussianPrior
from linmodels._results import RESULTS as RESULTS
from linmodels._results import Flag as Flag
from linmodels._results import FlagKind as FlagKind
from linmodels._storage import load as load
from linmodels._storage import save as save
from linmodels.methods import AbstractMethod as AbstractMethod
from linmodels.methods import BlockCG as BlockCG
from linmodels.methods import EvidencePath as EvidencePath
from linmodels.methods import Exact as Exact
from linmodels.methods import Matheron as Matheron
from linmodels.methods import SolverReport as SolverReport

__version__ = "0.1.0"
