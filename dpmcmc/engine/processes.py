"""Several processes, of one machine or of many, that run one plan together (``jax.distributed``).

    dpmcmc.processes.connect()                    # first of all, in every process
    dpmcmc.sample(plan, records, mesh=dpmcmc.mesh(data=2))

Every process calls the same with the same plan and records, and returns the same result. Process 0 draws the keys and
tells the others, over the network that also carries the sums before their noise: it must be a trusted one.

All that must be alike is compared before a step is taken: all add one noise to one sum, each by itself, so they must
round alike; and two orders of the records would count a record twice. A process that fails ends at once, so that the
others see it and end too.
"""

from __future__ import annotations

import os
import sys
from types import TracebackType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Mesh

from dpmcmc.engine.workers import is_loopback
from dpmcmc.errors import InputError
from dpmcmc.planning.stages import AnyPlan
from dpmcmc.privacy.query.randomness import Streams
from dpmcmc.storage.fingerprint import fingerprint, plan_digest, platform
from dpmcmc.storage.pytree import PyTree

#: Environment variables that say who a process is where no cluster does: ``host:port`` of process 0, how many, who.
COORDINATOR = "DPMCMC_COORDINATOR"
PROCESSES = "DPMCMC_PROCESSES"
PROCESS = "DPMCMC_PROCESS"
#: Seconds after which a process that is not heard of is given up, and with it the run.
_HEARTBEAT = 60
#: Seconds that all may take to start.
_START = 300
#: Seconds that the others wait at the end while process 0 writes.
_END = 3600


def connect(trusted_network: bool = False) -> None:
    """Join the processes of a run; before anything else is computed.

    They are given by ``DPMCMC_COORDINATOR``, ``DPMCMC_PROCESSES`` and ``DPMCMC_PROCESS`` (``scripts/launch_local.py``
    sets them), else found out by JAX, from SLURM or Open MPI.

    Args:
        trusted_network: you vouch that nobody else reads or changes what travels between them, sums without noise among
            it. Nothing encrypts that, so only processes that meet on this machine's loopback need no such word.

    Raises:
        ValueError: neither says it, or nobody vouches for the network.
        RuntimeError: something was computed before, or the others cannot be reached.
    """
    named = [os.environ.get(name) for name in (COORDINATOR, PROCESSES, PROCESS)]
    who: dict[str, Any] = {}
    if any(named):
        address, count, process = named
        if not (address and count and process and count.isdigit() and process.isdigit()):
            raise InputError(
                f"distributed: {COORDINATOR} (host:port), {PROCESSES} and {PROCESS} (whole numbers) go together; set "
                "all three, or none under SLURM or Open MPI"
            )
        who = {
            "coordinator_address": address,
            "num_processes": int(count),
            "process_id": int(process),
        }
        who["cluster_detection_method"] = "deactivate"
    host = str(who.get("coordinator_address", "")).rpartition(":")[0]
    if not trusted_network and not is_loopback(host):
        met = f"{COORDINATOR} is {host}" if host else "SLURM or Open MPI finds them"
        raise InputError(
            f"trusted_network: sums travel between processes unencrypted, before their noise, and {met}, which may "
            "lead over a network; say trusted_network (run.trusted_network: true in a config) if it is your own"
        )
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    try:
        jax.distributed.initialize(
            **who,
            initialization_timeout=_START,
            heartbeat_timeout_seconds=_HEARTBEAT,
            shutdown_timeout_seconds=_END,
        )
    except (ValueError, KeyError) as error:
        raise InputError(
            f"distributed: there is no saying which processes belong together ({error}); start them by "
            f"scripts/launch_local.py or SLURM, or set {COORDINATOR}, {PROCESSES} and {PROCESS}"
        ) from None
    sys.excepthook = _fail
    # Here, where all have just met: later, one that reads its records longer than 30 s would be taken for lost.
    multihost_utils.process_allgather(np.zeros(1))


def ended(code: int) -> int:
    """The exit code of this process; an error ends it here, without waiting for the others, which would wait for it."""
    if code and jax.distributed.is_initialized():
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    return code


def _fail(
    kind: type[BaseException], error: BaseException, trace: TracebackType | None
) -> None:
    sys.__excepthook__(kind, error, trace)
    ended(1)


def check_alone(**given: object) -> None:
    """Refuse what only one process can keep.

    Raises:
        ValueError: several processes, and one of these, by its name, is not None.
    """
    for name, value in given.items():
        if value is not None and jax.process_count() > 1:
            raise InputError(
                f"{name}: not with several processes; run on the devices of one process"
            )


def agreed(
    streams: Streams, secret: bool, plan: AnyPlan, records: PyTree, mesh: Mesh | None
) -> Streams:
    """The keys of process 0, on every process.

    Args:
        streams: this process's own; with one process they stay.
        secret: whether they are.
        plan, records, mesh: what it is about to run.

    Raises:
        ValueError: on every process, where they are not about to do the same.
    """
    if jax.process_count() == 1:
        return streams
    own = {
        "versions, processors, flags and code": platform(own=False),
        "plan": plan_digest(plan),
        "kind of key": repr(secret),
        "records": fingerprint(b"", records),
        "mesh": repr(None if mesh is None else tuple(mesh.shape.values())),
    }
    texts = np.array([list(fact.encode().ljust(64)) for fact in own.values()], np.uint8)
    every = multihost_utils.process_allgather(texts)
    differ = [name for at, name in enumerate(own) if np.any(every[:, at] != every[0, at])]
    if differ:
        raise InputError(
            f"distributed: the processes differ in their {', and in their '.join(differ)}; start all of them alike, on "
            "machines alike"
        )
    words = [np.asarray(jax.random.key_data(key)) for key in streams]
    shared = multihost_utils.broadcast_one_to_all(words)

    def like(own: jax.Array, words: np.ndarray) -> jax.Array:
        return jax.random.wrap_key_data(
            jnp.asarray(words, jnp.uint32), impl=jax.random.key_impl(own)
        )

    return Streams(*map(like, streams, shared))
