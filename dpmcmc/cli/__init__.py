"""The ``dpmcmc`` command. Nothing imports this room.

``commands``    every subcommand with its options, and ``main``; imports nothing that takes long
``options``     what several subcommands share
``run`` (with ``per_record``, ``place`` and ``saved``)  ``suggest``  ``audit``  ``sweep``  ``receipt``
``verify``  ``ledger``  ``fit``  ``schema``
                the longer subcommands; each is imported when its subcommand begins
``refusals``    one sentence and an exit code for what a user can mend;  ``faults`` a private file for a fault of ours
``interrupt``   Ctrl-C;  ``unread_output`` output that nobody reads to its end
"""
