"""The ``dpmcmc`` command: one file a subcommand, which loads when it is called. Nothing imports this room.

``run`` (with ``per_record``)  ``plan``  ``verify``  ``ledger``  ``audit``  ``data``
``refusals``    one sentence and an exit code for what a user can mend;  ``options`` what the subcommands share
``out_folder``  folders to write in
"""

from dpmcmc.cli.commands import main

__all__ = ["main"]
