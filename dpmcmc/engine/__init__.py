"""Executes a plan. Nothing in this room knows a formula for ε.

``blocks``        ``sample``: chunk by chunk, a block of chains at a time
``program``       the compiled steps: selection, query, sampler
``sweep``         ``sample_all``: many plans as one program;  ``template`` plans without their numbers
``mesh``          devices that share the work;  ``processes`` machines that do;  ``rows_on_disk`` records beyond memory
``reservation``   a run's place in a ledger;  ``charged_again`` what a run that went on elsewhere has spent
``result``        draws, guarantee, and the files that hold them
"""
