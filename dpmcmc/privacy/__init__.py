"""Privacy: one noisy query, one calibrator, one accountant.

``query``       the only place where records are read
``subsampling`` which records a step reads;  ``fixed_point`` exact sums;  ``randomness`` keys and noise
``charging``    nominal noise to charged events;  ``accounting`` events to ε;  ``calibration`` ε to noise
``promise``     what is asked for;  ``guarantee`` the result: ε, δ, and the events they are computed from
``ledger``      what may be spent on a data set by all runs together, and what was
"""

from dpmcmc.privacy.account import Problem, account
from dpmcmc.privacy.accounting import Event, UnsupportedCombination
from dpmcmc.privacy.calibration import CalibrationError, calibrate
from dpmcmc.privacy.guarantee import Guarantee, round_up
from dpmcmc.privacy.ledger import Ledger, LedgerError, OverBudget
from dpmcmc.privacy.promise import Privacy
from dpmcmc.privacy.query import GradientQuery, PrivateGradient
from dpmcmc.privacy.randomness import SecretKey
from dpmcmc.privacy.subsampling import FixedSize, Full, Poisson

__all__ = [
    "CalibrationError",
    "Event",
    "FixedSize",
    "Full",
    "GradientQuery",
    "Guarantee",
    "Ledger",
    "LedgerError",
    "OverBudget",
    "Poisson",
    "Privacy",
    "PrivateGradient",
    "Problem",
    "SecretKey",
    "UnsupportedCombination",
    "account",
    "calibrate",
    "round_up",
]
