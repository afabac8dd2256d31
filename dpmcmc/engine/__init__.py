"""Executes a plan. It adds events; the room ``privacy.accounting`` makes ε of them.

``life``          ``sample``, and the one life of a run: reserve, read, begin, commit, save, settle
``work``          work on the stages of a plan;  ``work_table`` who does it, by the type of the stage
``metric_release``, ``one_shot``  stages that release once;  ``checked_records`` of a mechanism
``chains``        a sampler's run;  ``chain_checks`` and ``commits`` of it
``steps``         its steps, compiled, tested and taken chunk by chunk;  ``kept_draws`` of them
``program``       the step of one chain: selection, query, sampler;  ``recorded`` sums of it
``device_calls``  a chunk of steps of many chains;  ``lanes`` of chains, one a core;  ``rows_on_disk`` beyond memory;
                  ``drawn_ahead`` what an idle core draws
``compilation``   what is compiled of a program, and kept;  ``sizes`` of what is computed at a time
``devices``       kinds of device;  the ``mesh`` of a run;  ``processes`` that share it
``partitions``    records of a table in partitions, of which sums alone are asked;  ``workers`` that compute on them
``self_test``     an executable's first steps beside those of a program that no cache served
``reservation``   a run's place in a ledger
``tasks``         a queue of tasks that survives a kill;  ``results_table`` with a row for each
``result``        draws, guarantee;  ``saving``, ``result_folder`` and ``loaded_result``: the files that hold them
"""

import lazy_loader

#: ``dpmcmc.processes`` is found here by its name.
__getattr__, __dir__, __all__ = lazy_loader.attach(__name__, submodules=["processes"])
