"""Executes a plan. It adds events, and sums of unledgered runs; the room ``privacy.accounting`` makes ε of events.

``life``          ``sample``, and the one life of a run: reserve, read, begin, commit, save, settle; ``sample_all``
``work``          who carries out a plan, by its type
``chains``        a sampler's plan, chunk by chunk: checks of records, the metric, commits to a checkpoint
``program``       the steps of a chunk: selection, query, sampler; usual batches in fewer slots
``compilation``   what is compiled of a program, and kept; how much is computed at a time
``hardware``      kinds of device, and the mesh of devices that share the work;  ``processes`` machines that do
``blocks``        chains laid out in blocks, and in lanes, one a core
``rows_on_disk``  records beyond memory; what a thread computes ahead
``partitions``    records of a table in partitions, of which sums alone are asked;  ``workers`` that compute on them
``self_test``     an executable's first steps beside those of a program that no cache served
``reservation``   a run's place in a ledger, and its output folder
``cells``         a queue of cells that survives a kill: workers, and a table with a row for each
``result``        draws, guarantee, and the files that hold them; the count of runs that no ledger was charged for
"""

import lazy_loader

#: ``dpmcmc.processes`` is found here by its name.
__getattr__, __dir__, __all__ = lazy_loader.attach(__name__, submodules=["processes"])
