"""Error of an engine that has no draw."""


class DrawError(RuntimeError):
    """A message to the data holder: nothing was released.

    The failure is a function of the records, which no guarantee covers: keep it from others.
    """
