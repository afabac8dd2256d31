"""A way to a server of PostgreSQL that acts at one message: between a client and the server, whichever ends."""

import contextlib
import select
import socket
import threading
import time


class Proxy:
    """Passes on messages, until the one that it is armed for.

    Attributes:
        port: at 127.0.0.1.
        acted: set once the action has been taken.
    """

    def __init__(self, port):
        self._to = port
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port = self._listening.getsockname()[1]
        self.acted = threading.Event()
        self._armed = None
        threading.Thread(target=self._listen, daemon=True).start()

    def arm(self, number, moment, action, delay=0.0):
        """Act at the client's ``number``-th message from now on, and end its connection.

        Args:
            number: 1, 2, ...
            moment: ``before`` the server has it, ``while`` the server works on it, ``after`` its reply, which the
                client does not get.
            action: called without arguments.
            delay: seconds of work after which to act, of ``while``.
        """
        self.acted.clear()
        self._armed = [number, moment, action, delay]

    def close(self):
        self._listening.close()

    def _listen(self):
        while True:
            try:
                client, _ = self._listening.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client):
        with client, contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self._to)) as server:
            length = _exactly(client, 4)
            server.sendall(length + _exactly(client, int.from_bytes(length) - 4))
            while True:
                ready, _, _ = select.select([client, server], [], [])
                if server in ready:
                    client.sendall(_some(server))
                elif not self._pass_on(client, server):
                    return

    def _pass_on(self, client, server):
        """Pass on the client's next message; whether the connection goes on."""
        head = _exactly(client, 5)
        message = head + _exactly(client, int.from_bytes(head[1:]) - 4)
        if self._armed is None or head[:1] != b"Q":
            server.sendall(message)
            return True
        self._armed[0] -= 1
        if self._armed[0]:
            server.sendall(message)
            return True
        _, moment, action, delay = self._armed
        self._armed = None
        if moment != "before":
            server.sendall(message)
        if moment == "while":
            time.sleep(delay)
        if moment == "after":
            _reply(server)
        action()
        self.acted.set()
        return False


def _some(end):
    found = end.recv(1 << 16)
    if not found:
        raise ConnectionError
    return found


def _exactly(end, size):
    found = b""
    while len(found) < size:
        part = end.recv(size - len(found))
        if not part:
            raise ConnectionError
        found += part
    return found


def _reply(server):
    """Read messages of the server until it is ready for the next query."""
    while True:
        head = _exactly(server, 5)
        _exactly(server, int.from_bytes(head[1:]) - 4)
        if head[:1] == b"Z":
            return
