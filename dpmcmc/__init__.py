"""dpmcmc: differentially private stochastic-gradient MCMC in JAX.

Every sampler is post-processing of one noisy gradient query::

    plan = dpmcmc.plan(target, num_records=N, sampler=dpmcmc.SGLD(step_size=16.0), sampling=dpmcmc.Poisson(512),
                       steps=1272, privacy=dpmcmc.Privacy(epsilon=1.0, delta=1e-6))
    result = dpmcmc.sample(plan, {"x": x, "y": y})
    result.draws, result.guarantee

Names are declared in ``__init__.pyi`` and load when they are first used, so that accounting and ``dpmcmc verify`` do
not wait for JAX.
"""

import sys

if sys.argv[:1] == ["-m"]:  # Python looks for the program of ``python -m NAME``
    _is_command = sys.orig_argv[-len(sys.argv)].removeprefix("-m") in (
        "dpmcmc",
        "dpmcmc.run",
    )
else:
    _is_command = sys.argv[:1] == [f"{sys.executable.rpartition('/')[0]}/dpmcmc"]
if _is_command:
    import _signal  # signal itself takes milliseconds, and this is before anything else

    # Until the command has a handler of its own (`cli/interrupt.py`), Ctrl-C ends the process without a traceback.
    if _signal.getsignal(_signal.SIGINT) is _signal.default_int_handler:
        _signal.signal(_signal.SIGINT, _signal.SIG_DFL)

import lazy_loader

__version__ = "0.2.0"

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
