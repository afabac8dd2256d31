"""Cost of a DP-SG-MCMC run to each training record, along the trajectory that it took.

CONFIDENTIAL: computed from every record at every step, without privacy. It belongs in ``confidential/``, never in a
released folder, and must not be used to set noise.

``account``  norms of gradients at every step, the sum over steps, the ε read off it, and what that claims
``step``     Rényi divergence of one step for a record that moves the sum by less than the clip norm
"""

from dpmcmc.diagnostics.per_record.account import (
    Account,
    PerRecord,
    check,
    per_record_epsilon,
    sample_and_account,
)

__all__ = ["Account", "PerRecord", "check", "per_record_epsilon", "sample_and_account"]
