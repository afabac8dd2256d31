"""Workers that compute on partitions: this process, or a Dask cluster.

    with workers("dask://127.0.0.1:8786") as engine:
        engine.results(count, parts, names)       # count(part) of each part, in their order

A worker returns a sum over records without noise, so links between processes must be local or encrypted: an engine
whose links are neither is refused, unless the user vouches for its network (``trusted_network``).

=====================================================  ==============================================
engine                                                 its links
=====================================================  ==============================================
none: this process                                     local
Dask on ``inproc://``, on ``tcp://`` of loopback       local
Dask on ``tls://``                                     encrypted
Dask on other ``tcp://``                               neither: ``trusted_network``
=====================================================  ==============================================

Nothing is tried twice here. A Dask scheduler gives the work of a lost worker to another one as often as its setting
``allowed-failures`` says, which changes no result: it is kept by the number of its partition, once.
"""

from __future__ import annotations

import ipaddress
import secrets
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, closing, nullcontext
from pickle import PicklingError
from typing import Any, Protocol, TypeAlias, TypeVar
from urllib.parse import urlsplit

from dpmcmc.errors import InputError, RunFailed

#: An engine as a user gives it: the URL of a Dask scheduler; a ``distributed.Client``; or None, which is this process.
#: Dask need not be installed, so its client has no type here.
EngineGiven: TypeAlias = Any

_T = TypeVar("_T")
_R = TypeVar("_R")

#: Seconds between two looks at a cluster, and after which one without a worker is given up.
_LOOK, _NOBODY = 2.0, 30.0
#: Schemes of the URLs of schedulers.
_SCHEMES = {"dask": "tcp", "tls": "tls"}
#: Schemes of addresses whose links are within a process, or encrypted.
_SAFE = ("inproc", "tls", "wss")


class LostPartition(RunFailed):
    """Records could not be read as they were checked: a worker was lost with its partition, or the records changed.

    Example:
        >>> from dpmcmc.engine.workers import LostPartition
        >>> from dpmcmc.errors import RunFailed
        >>> issubclass(LostPartition, RunFailed)
        True
    """


class Workers(Protocol):
    """Workers that compute on partitions."""

    def results(self, function: Callable[[_T], _R], items: Sequence[_T], names: Sequence[str]) -> list[_R]:
        """Return what a function makes of each item, in their order.

        Args:
            function: picklable, and pure.
            items: picklable.
            names: of the items, public, for messages.

        Raises:
            LostPartition: a worker was lost.
            InputError: the function or an item cannot be sent to another process.
        """


def workers(given: EngineGiven = None, trusted_network: bool = False) -> AbstractContextManager[Workers]:
    """Return the workers that a user means, as a context that ends those that it has started.

    Args:
        given: see :data:`EngineGiven`.
        trusted_network: whether the user vouches that nobody else reads or changes what its links carry.

    Raises:
        InputError: there is no such engine, it cannot be reached, or its links are neither local nor encrypted.
    """
    if type(given) in (Here, Cluster):  # the context that made it goes on
        return nullcontext(given)
    if given is None:
        return nullcontext(Here())
    if _is_client(given):
        return closing(Cluster(given, trusted_network))
    if isinstance(given, str):
        check_engine(given)
        return closing(Cluster(connected(given), trusted_network, own=True))
    raise InputError(
        f"engine: a {type(given).__name__} is none, and executors and clients of one's own are not taken, for nothing "
        "says what they compute; give a distributed.Client of Dask, or the URL of its scheduler",
        "engine",
    )


def check_engine(url: str) -> None:
    """Refuse a text that names no engine; nothing is reached.

    Raises:
        InputError: it is no URL of a scheduler.
    """
    if not is_cluster(url):
        raise InputError(
            f"engine: {url!r} is none; give the address of a Dask scheduler, as dask://HOST:PORT or tls://HOST:PORT, "
            "or leave it out: this process then reads one partition after the other",
            "engine",
        )


class Here:
    """This process, which computes on one partition after the other."""

    def results(self, function: Callable[[_T], _R], items: Sequence[_T], names: Sequence[str]) -> list[_R]:
        """Return what the function makes of each item; see :class:`Workers`."""
        return [function(item) for item in items]


class Cluster:
    """A cluster of Dask.

    A partition goes to the same worker in each pass, as long as the workers stay the same, so that the rows which it
    keeps are used again.

    Args:
        client: of its scheduler.
        trusted_network: as of :func:`workers`.
        own: whether the client ends with the context.
    """

    def __init__(self, client: Any, trusted_network: bool, own: bool = False) -> None:
        self._client = client
        self._trusted = trusted_network
        self._own = own
        self._token = secrets.token_hex(8)
        self._passes = 0
        try:
            self._check_links()
        except BaseException:
            if own:
                client.close()
            raise

    def results(self, function: Callable[[_T], _R], items: Sequence[_T], names: Sequence[str]) -> list[_R]:
        """Return what the function makes of each item; see :class:`Workers`."""
        there = self._check_links()
        self._passes += 1
        futures: dict[Any, int] = {}
        found: dict[int, _R] = {}
        try:
            for number, item in enumerate(items):
                own = {"workers": [there[number % len(there)]]} if there else {}
                future = self._client.submit(
                    function,
                    item,
                    key=f"dpmcmc-{self._token}-{self._passes}-{number}",
                    pure=False,
                    retries=0,
                    allow_other_workers=bool(own),
                    **own,
                )
                futures[future] = number
            self._gather(futures, found, names)
        except (PicklingError, AttributeError, TypeError) as error:
            raise _not_sent(error) from None
        finally:
            # Nothing stays on the cluster.
            self._client.cancel([one for one in futures if not one.done()], force=True)
            for future in futures:
                future.release()
        return [found[number] for number in range(len(items))]

    def _gather(self, futures: dict[Any, int], found: dict[int, Any], names: Sequence[str]) -> None:
        from distributed import wait

        left = set(futures)
        seen = time.monotonic()
        while left:
            name = names[min(futures[future] for future in left)]
            try:
                done = set(wait(left, _LOOK, "FIRST_COMPLETED").done)
            except TimeoutError:
                done = set()
            except Exception as error:  # the scheduler's connection, in many kinds
                raise _lost(name, error) from None
            for future in done:
                name = names[futures[future]]
                if future.status != "finished":
                    raise _lost(name, future.exception(timeout=_NOBODY))
                try:
                    found[futures[future]] = future.result(timeout=_NOBODY)
                except Exception as error:  # its worker was lost after it had computed
                    raise _lost(name, error) from None
            left -= done
            if done or self._addresses()[1]:
                seen = time.monotonic()
            if self._client.status != "running" or time.monotonic() - seen > _NOBODY:
                raise _lost(name, None)

    def _addresses(self) -> tuple[list[str], list[str]]:
        """Return addresses of the scheduler, and of the workers."""
        info = self._client.scheduler_info(n_workers=-1)
        scheduler = getattr(self._client.scheduler, "address", info["address"])
        return [scheduler, info["address"]], sorted(info["workers"])

    def _check_links(self) -> list[str]:
        """Return the addresses of the workers.

        Raises:
            InputError: a link is neither local nor encrypted.
        """
        schedulers, there = self._addresses()
        bare = [one for one in (*schedulers, *there) if not is_safe(one)]
        if bare and not self._trusted:
            raise InputError(
                f"engine: {bare[0]} is neither on this machine's loopback nor encrypted, and partial sums carry no "
                "noise yet; use TLS (tls://HOST:PORT), start scheduler and workers with --host 127.0.0.1, or say "
                "trusted_network if the network is your own",
                "engine",
            )
        return there

    def close(self) -> None:
        """End the client that is its own."""
        if self._own:
            self._client.close()


def is_safe(address: str) -> bool:
    """Return whether a link to an address stays on this machine or is encrypted."""
    found = urlsplit(address)
    if found.scheme in _SAFE:
        return True
    return found.scheme == "tcp" and is_loopback(found.hostname or "")


def is_loopback(host: str) -> bool:
    """Return whether a host's name or number is this machine's own loopback."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:  # a name
        return False


def _is_client(given: object) -> bool:
    kind = type(given)  # a class made of it may compute something else
    return (kind.__module__, kind.__name__) == ("distributed.client", "Client")


def is_cluster(url: str) -> bool:
    """Return whether a text is the URL of a Dask scheduler; nothing is reached."""
    try:
        found = urlsplit(url)
        return found.scheme in _SCHEMES and bool(found.hostname) and bool(found.port)
    except ValueError:  # a port that is no number
        return False


def connected(url: str, named: str = "engine", seconds: float = _NOBODY) -> Any:
    """Return a client of the scheduler at a URL, ``distributed.Client``.

    Args:
        url: of which :func:`is_cluster` is true.
        named: option that it was given by, for messages.
        seconds: that it may take to answer.

    Raises:
        InputError: Dask is not there, or the scheduler cannot be reached.
    """
    try:
        from distributed import Client
    except ImportError:
        raise InputError(
            f"{named}: a Dask cluster needs Dask: pip install 'dask[dataframe]' distributed",
            named,
        ) from None
    found = urlsplit(url)
    address = f"{_SCHEMES[found.scheme]}://{found.netloc}"
    try:
        return Client(address, set_as_default=False, timeout=seconds)
    except (OSError, TimeoutError, ValueError, RuntimeError, TypeError) as error:
        raise InputError(
            f"{named}: no scheduler answers at {address} ({type(error).__name__}); start it, or correct the address",
            named,
        ) from None


def _lost(name: str, error: BaseException | None) -> LostPartition:
    # The error's own words may quote what it was about.
    why = "" if error is None else f" ({type(error).__name__})"
    return LostPartition(f"engine: a worker was lost with {name}{why}")


def _not_sent(error: BaseException) -> InputError:
    return InputError(
        f"engine: the work cannot be sent to another process ({type(error).__name__}), as code that is defined in a "
        "notebook or inside a function cannot; move the code to a module",
        "engine",
    )
