"""What an engine says when it has no draw."""


class DrawError(RuntimeError):
    """A message to the data holder: nothing was released.

    That it happened is a function of the records, which no guarantee covers: keep it from others.
    """
