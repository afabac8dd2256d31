"""Diagnostics for the data holder, after a run.

``reference``, ``per_instance``, ``per_record`` and ``on_average_kl`` read training records without privacy:
confidential unless the records are public.
"""

from dpmcmc.diagnostics import on_average_kl, per_instance, per_record

__all__ = ["on_average_kl", "per_instance", "per_record"]
