"""Methods of inference, one a file."""

from linmodels.methods._method import AbstractMethod as AbstractMethod
from linmodels.methods._method import AbstractSystem as AbstractSystem
from linmodels.methods._method import EvidenceTerms as EvidenceTerms
from linmodels.methods._method import Scales as Scales
from linmodels.methods.exact import Exact as Exact

__all__ = ["AbstractMethod", "AbstractSystem", "EvidenceTerms", "Exact", "Scales"]
