"""Cost of a DP-SG-MCMC run to each training record, along the trajectory that it took.

CONFIDENTIAL: computed from every record at every step, without privacy. It belongs in ``confidential/``, never in a
released folder, and must not be used to set noise.

``account``     the sum over steps, and the ε read off it: what is claimed, and what is not
``norms``       upper bounds on a record's gradient norm at every step, from checks every k steps; the sum over steps
            of a step's Rényi divergence for a record that moves the sum by less than the clip norm

The histogram is in ``report/per_record.py``.
"""

from dpmcmc.diagnostics.per_record.account import (
    Account,
    PerRecord,
    check,
    per_record_epsilon,
    sample_and_account,
)

__all__ = ["Account", "PerRecord", "check", "per_record_epsilon", "sample_and_account"]
