"""The benchmark's sections, one idea per file; ``scripts/benchmark.py`` runs them.

``comparators``  dpmcmc against what users would otherwise run: blackjax, jax-privacy, Opacus (``opacus_worker``)
``growth``       a step as records, features, batch, chains and steps grow
``compiling``    from cold, and from the persistent cache
``memory``       peak of each shipped configuration
``safeguards``   what each of privacy's safeguards costs
``networks``     per-record clipping of a Flax network
``commands``     a configuration run in a process of its own
``timing``       programs taken in turn; ``problem`` the records and plans; ``report`` tables; ``machine`` where it ran
"""
