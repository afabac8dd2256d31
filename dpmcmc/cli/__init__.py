"""The ``dpmcmc`` command: one file a subcommand. Nothing imports this room."""
