"""Memory that a method takes: the resident pages of this process, watched while it runs."""

from __future__ import annotations

import os
import threading


class Peak:
    """Peak of the memory that this process takes within a ``with`` block, above what it had before."""

    _EVERY = 0.02

    def __enter__(self) -> Peak:
        self._base = self._most = self._resident()
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()
        self.mebibytes = (max(self._most, self._resident()) - self._base) / 2**20

    def _watch(self) -> None:
        while not self._done.wait(self._EVERY):
            self._most = max(self._most, self._resident())

    @staticmethod
    def _resident() -> int:
        """Return the resident bytes of this process; 0 where the system has no /proc."""
        try:
            with open("/proc/self/statm", encoding="ascii") as file:
                return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        except OSError:
            return 0
