"""Executes a plan. Nothing in this room knows a formula for ε.

``life``          ``sample``, and the one life of a run: reserve, read, begin, commit, save, settle
``work``          who carries out a plan, by its type;  ``chains`` a sampler's plan
``blocks``        chunk by chunk, a block of chains at a time;  ``lanes`` chains beside each other, one lane a core
``sizing``        how much at a time;  ``checks`` what is refused before anything is computed from a record
``program``       the compiled steps: selection, query, sampler
``self_test``     an executable's first steps beside ``uncompiled`` ones, which no cache served
``sweep``         ``sample_all``: many plans as one program;  ``template`` plans without their numbers
``mesh``          devices that share the work;  ``processes`` machines that do;  ``rows_on_disk`` records beyond memory
``reservation``   a run's place in a ledger;  ``charged_again`` what a run that went on elsewhere has spent
``result``        draws, guarantee, and the files that hold them
"""

import lazy_loader

#: ``dpmcmc.processes`` is found here by its name.
__getattr__, __dir__, __all__ = lazy_loader.attach(__name__, submodules=["processes"])
