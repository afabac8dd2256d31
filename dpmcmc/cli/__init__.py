"""The ``dpmcmc`` command: one file a subcommand, which loads when it is called. Nothing imports this room.

``commands``    the subcommands by name, what they share, and ``main``
``run`` (with ``per_record``, ``place`` and ``saved``)  ``plan``  ``suggest``  ``verify``  ``ledger``
``audit``  ``data``
``refusals``    one sentence and an exit code for what a user can mend; a private file for a fault of ours
``interrupt``   Ctrl-C at any moment, and output that nobody reads to its end
"""
