"""Several processes, of one machine or of many, that run one plan together (``jax.distributed``).

    dpmcmc.processes.connect()                    # first of all, in every process
    dpmcmc.sample(plan, records, mesh=dpmcmc.mesh(data=2))

Every process calls the same with the same plan and records, and returns the same result. Process 0 draws the keys and
tells the others, over the network that also carries the sums before their noise: it must be a trusted one.

All that must be alike is compared before a step is taken: all add one noise to one sum, each by itself, so they must
round alike; and two orders of the records would count a record twice. A process that fails ends at once, so that the
others see it and end too.

**Kept once.** Process 0 alone has the checkpoint and the ledger. It uses them in calls of
:func:`of_first`, which every process makes: the others wait until it is done and learn what came of it. A refusal there
ends them all with one sentence, which process 0 says.
"""

from __future__ import annotations

import os
import sys
from types import TracebackType
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils

from dpmcmc.engine.workers import is_loopback
from dpmcmc.errors import InputError, SaidByFirst

#: Environment variables that say who a process is where no cluster does: ``host:port`` of process 0, how many, who.
COORDINATOR = "DPMCMC_COORDINATOR"
PROCESSES = "DPMCMC_PROCESSES"
PROCESS = "DPMCMC_PROCESS"
#: Environment variable by which you vouch for the network between them: ``1``.
TRUSTED = "DPMCMC_TRUSTED_NETWORK"
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
            ``DPMCMC_TRUSTED_NETWORK=1`` says it too, for a run that is resumed without its config.

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
    trusted = trusted_network or os.environ.get(TRUSTED) == "1"
    if not trusted and not is_loopback(host):
        met = f"{COORDINATOR} is {host}" if host else "SLURM or Open MPI finds them"
        raise InputError(
            f"trusted_network: sums travel between processes unencrypted, before their noise, and {met}, which may "
            "lead over a network; say trusted_network (run.trusted_network: true in a config, or "
            f"{TRUSTED}=1 in the environment) if it is your own"
        )
    if is_loopback(host):
        # JAX would listen on every address of this machine.
        who["coordinator_bind_address"] = who["coordinator_address"]
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


def _fail(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    if not isinstance(error, SaidByFirst):
        sys.__excepthook__(kind, error, trace)
    ended(1)
