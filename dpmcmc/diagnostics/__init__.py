"""Diagnostics for the data holder, after a run.

``receipt`` computes what a run has cost one person, from the release and that person's record alone.

``reference``, ``per_instance`` and ``per_record`` read training records without privacy:
confidential unless the records are public.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach(
    __name__,
    submodules=["per_instance", "per_record"],
    submod_attrs={"receipt": ["PersonalReceipt", "personal_receipt"]},
)
