"""Executes a plan. Nothing in this room knows a formula for ε.

``life``          ``sample``, and the one life of a run: reserve, read, begin, commit, save, settle
``work``          who carries out a plan, by its type;  ``chains`` a sampler's plan, chunk by chunk
``program``       the steps of a chunk: selection, query, sampler;  ``usual_batches`` them in fewer slots
``compilation``   what is compiled of a program, and kept;  ``sizing`` how much is computed at a time,
                  ``hardware`` for which kind of device
``blocks``        chains laid out in blocks;  ``lanes`` chains beside each other, one lane a core
``commits``       commits of steps to a checkpoint;  ``checks`` what is refused before a record is computed with
``self_test``     an executable's first steps beside ``uncompiled`` ones, which no cache served
``sweep``         ``sample_all``: many plans as one program
``mesh``          devices that share the work;  ``processes`` machines that do;  ``rows_on_disk`` records beyond memory
``reservation``   a run's place in a ledger;  ``charged_again`` what a run that went on elsewhere has spent
``result``        draws, guarantee, and the files that hold them; the error of a chain that diverged
"""

import lazy_loader

#: ``dpmcmc.processes`` is found here by its name.
__getattr__, __dir__, __all__ = lazy_loader.attach(__name__, submodules=["processes"])
