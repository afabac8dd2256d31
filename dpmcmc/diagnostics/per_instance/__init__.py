"""Cost of a release to one person: per-instance DP of Gaussian output perturbation and of posterior draws of a ridge.

CONFIDENTIAL: leave-one-out values, and every ε computed from them, read every record; never in the released folder,
never used to set noise. ``worst_case`` reads none, and ``objective`` one.

``releases``    exact ε of a record, of one posterior draw and of the estimate plus Gaussian noise, from leave-one-out
                values of all records
``refits``      estimates of a generalised linear model without each record, and shapes of noise
``moments``     what the mean of e^ε over records says of generalisation
``objective``   a bound on the realised loss of one record in objective perturbation, from the release and that record
                alone
``worst_case``  the largest ε over data and records, differential privacy; the same over records that could join

(ε, δ) is of one record z and the data Z without it, and bounds both directions, adding z and removing it: for all
events S, P_Z(S) <= e^ε P_[Z,z](S) + δ and P_[Z,z](S) <= e^ε P_Z(S) + δ (Wang 2017, per-instance differential privacy).
"""

from dpmcmc.diagnostics.per_instance.moments import (
    Generalisation,
    generalisation_bound,
)
from dpmcmc.diagnostics.per_instance.objective import ObjectiveRelease
from dpmcmc.diagnostics.per_instance.refits import (
    Refits,
    leave_one_out_of,
    noise_root,
)
from dpmcmc.diagnostics.per_instance.releases import (
    LeaveOneOut,
    leave_one_out,
    output_perturbation_delta,
    output_perturbation_epsilon,
    ridge_ops_delta,
    ridge_ops_epsilon,
)
from dpmcmc.diagnostics.per_instance.worst_case import (
    ForAll,
    output_perturbation_for_all,
    output_perturbation_sensitivity,
    ridge_ops_for_all,
    ridge_ops_worst_case,
)

__all__ = [
    "ForAll",
    "Generalisation",
    "LeaveOneOut",
    "ObjectiveRelease",
    "Refits",
    "generalisation_bound",
    "leave_one_out",
    "leave_one_out_of",
    "noise_root",
    "output_perturbation_delta",
    "output_perturbation_epsilon",
    "output_perturbation_for_all",
    "output_perturbation_sensitivity",
    "ridge_ops_delta",
    "ridge_ops_epsilon",
    "ridge_ops_for_all",
    "ridge_ops_worst_case",
]
