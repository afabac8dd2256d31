"""The ``dpmcmc`` command. Nothing imports this room.

``commands``    declares every subcommand and its options, imports nothing that takes long, and has ``main``
``options``     what several subcommands share
``run`` (with ``per_record``, ``place`` and ``saved``)  ``plan``  ``suggest``  ``verify``  ``ledger``  ``audit``
``data``  ``configs``  ``schema``
                carry a subcommand out; each is imported when its subcommand begins
``sweep``       configs of a grid, each by ``run``
``refusals``    one sentence and an exit code for what a user can mend;  ``faults`` a private file for a fault of ours
``interrupt``   Ctrl-C at any moment;  ``unread_output`` output that nobody reads to its end
"""
