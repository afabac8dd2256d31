"""What the data holder may learn about a run after it.

``reference``, ``per_instance``, ``per_record`` and ``on_average_kl`` read training records without privacy:
confidential unless the records are public.
"""

from dpmcmc.diagnostics import on_average_kl, per_instance, per_record

__all__ = ["on_average_kl", "per_instance", "per_record"]
