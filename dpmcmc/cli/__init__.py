"""The ``dpmcmc`` command: one file a subcommand, which loads when it is called. Nothing imports this room.

``commands``    the subcommands by name, and ``main``
``run`` (with ``per_record``, ``place`` and ``saved``)  ``plan``  ``suggest``  ``verify``  ``ledger``
``audit``  ``data``
``refusals``    one sentence and an exit code for what a user can mend;  ``faults`` for what is ours
``interrupt``   Ctrl-C at any moment;  ``pipes`` output that nobody reads to its end
``options``     what the subcommands share
"""
