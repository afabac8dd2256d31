"""The package in other people's programs: an import changes nothing, and exceptions travel between processes."""

import importlib
import inspect
import os
import pickle
import pkgutil
import subprocess
import sys
import textwrap
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import pytest

import dpmcmc
from dpmcmc.engine.result import DivergedError
from dpmcmc.engine.self_test import MiscompiledError
from dpmcmc.errors import SaidByFirst

#: Prints what differs after the import. Other libraries are imported before: what they change is theirs.
PROGRAM = """
    import faulthandler, gc, locale, logging, os, signal, sys, threading, warnings
    import numpy as np
    import jax.numpy, lazy_loader, matplotlib.figure, optax, scipy.linalg, scipy.special, sklearn, threadpoolctl

    def state():
        loggers = {"": logging.getLogger(), **logging.root.manager.loggerDict}
        return {
            "signals": {number: signal.getsignal(number) for number in signal.valid_signals()},
            "timer": signal.getitimer(signal.ITIMER_REAL),
            "mask": signal.pthread_sigmask(signal.SIG_BLOCK, []),
            "environment": dict(os.environ),
            "folder": os.getcwd(),
            "warnings": [str(one) for one in warnings.filters] + [str(warnings.showwarning)],
            "threads of BLAS": [(one["filepath"], one["num_threads"]) for one in threadpoolctl.threadpool_info()],
            "threads": [one.name for one in threading.enumerate()],
            "jax": {name: str(value) for name, value in jax.config.values.items()},
            "jax's devices": sorted(jax._src.xla_bridge._backends),
            "logging": {name: (one.level, one.propagate, one.disabled, list(one.handlers))
                        for name, one in loggers.items()
                        if isinstance(one, logging.Logger) and not name.startswith("dpmcmc")},
            "garbage": (gc.isenabled(), gc.get_threshold(), gc.get_freeze_count(), list(gc.callbacks)),
            "hooks": (sys.excepthook, sys.unraisablehook, sys.displayhook, threading.excepthook),
            "streams": (sys.stdin, sys.stdout, sys.stderr, faulthandler.is_enabled()),
            "interpreter": (sys.getrecursionlimit(), sys.getswitchinterval(), list(sys.path), list(sys.argv)),
            "numpy": (str(np.geterr()), str(np.get_printoptions())),
            "locale": locale.setlocale(locale.LC_ALL),
            "matplotlib": {name: str(value) for name, value in dict.items(matplotlib.rcParams)},
        }

    before = state()
    import dpmcmc
    for name in dir(dpmcmc):
        getattr(dpmcmc, name)
    after = state()
    # Loggers of libraries that are imported later are theirs.
    after["logging"] = {name: after["logging"][name] for name in before["logging"]}
    print([name for name in before if before[name] != after[name]])
"""

#: Command lines of other programs; ``x`` is the program above.
LINES = {
    "a file": ["x.py"],
    "a file with the words of a command": ["x.py", "-m", "dpmcmc"],
    "a file with a name that begins so": ["x.py", "-m", "dpmcmc_notes"],
    "a file of the command's name": ["dpmcmc"],
    "a module": ["-m", "x"],
    "a module with the words of a command": ["-m", "x", "-m", "dpmcmc"],
    "a module within a package that imports it": ["-m", "other", "-m", "dpmcmc"],
    "a module whose name begins so": ["-m", "dpmcmc_notes"],
}


@pytest.mark.parametrize("line", LINES.values(), ids=LINES)
def test_importing_the_package_changes_nothing_in_another_program(line, tmp_path):
    program = textwrap.dedent(PROGRAM)
    (tmp_path / "other").mkdir()
    for name in ("x.py", "dpmcmc_notes.py", "bin_dpmcmc", "other/__init__.py"):
        (tmp_path / name).write_text(program)
    (tmp_path / "other" / "__main__.py").write_text("")
    if line == ["dpmcmc"]:
        (tmp_path / "bin").mkdir()
        line = [(tmp_path / "bin_dpmcmc").rename(tmp_path / "bin" / "dpmcmc")]
    root = os.path.dirname(os.path.dirname(dpmcmc.__file__))
    found = {"PYTHONPATH": os.pathsep.join([str(tmp_path), root])}
    free = {name: value for name, value in os.environ.items() if not name.endswith("_NUM_THREADS")}
    done = subprocess.run(
        [sys.executable, *line], cwd=tmp_path, env=free | found, capture_output=True, text=True, check=False
    )
    assert done.stdout == "[]\n", done.stdout + done.stderr


def exceptions():
    """Every exception class that a module of the package makes."""
    found = set()
    for module in pkgutil.walk_packages(dpmcmc.__path__, "dpmcmc."):
        if not module.name.endswith("__main__") and module.name != "dpmcmc.run":
            try:
                made = vars(importlib.import_module(module.name)).values()
            except ImportError:  # an optional library that is not installed
                continue
            found |= {one for one in made if inspect.isclass(one) and issubclass(one, BaseException)}
    return sorted((one for one in found if one.__module__.startswith("dpmcmc.")), key=lambda one: one.__qualname__)


def made(cls):
    """An exception with a value of its own for each argument of its constructor."""
    values = {"int": 7, "float": 0.5, "str": "what and where", "Iterable[int]": (3, 5)}
    arguments = {}
    if cls.__init__ in (RuntimeError.__init__, Exception.__init__, ValueError.__init__, BaseException.__init__):
        return cls("what and where")
    for name, parameter in inspect.signature(cls.__init__).parameters.items():
        if name == "self":
            continue
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            return cls("what and where")
        arguments[name] = values.get(str(parameter.annotation))
    return cls(**arguments)


def same(one, other):
    return type(one) is type(other) and one.args == other.args and vars(one) == vars(other) and str(one) == str(other)


@pytest.mark.parametrize("cls", exceptions(), ids=lambda cls: cls.__qualname__)
@pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
def test_every_exception_keeps_its_words_and_fields_in_a_pickle(cls, protocol):
    error = made(cls)
    error.add_note("seen on the way")
    assert same(error, pickle.loads(pickle.dumps(error, protocol)))


def test_those_with_fields_are_among_them():
    assert {DivergedError, MiscompiledError, SaidByFirst} <= set(exceptions())
    assert vars(made(DivergedError))["step"] == 7
    assert vars(made(SaidByFirst))["code"] == 7


def raised(number):
    raise (DivergedError(step=number, norm=2.5, guarantee=None), SaidByFirst("refused.", number))[number % 2]


def test_a_process_pool_carries_them():
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        futures = [pool.submit(raised, number) for number in (4, 5)]
        with pytest.raises(DivergedError, match="by step 4") as diverged:
            futures[0].result()
        with pytest.raises(SaidByFirst, match="refused") as said:
            futures[1].result()
    assert diverged.value.step == 4
    assert said.value.code == 5
