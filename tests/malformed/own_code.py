"""Targets and samplers of one's own that are missing, raise, or return nonsense."""

from collections.abc import Iterator
from pathlib import Path

import yaml

from tests.malformed.case import CONFIGS, EITHER, REFUSED, Case, Make, config, plant

_MODULES = {
    "malformed_module": """
import dpmcmc
class Both(dpmcmc.SGLD, dpmcmc.targets.LogisticRegression): pass
def unsaid(**keys): return dpmcmc.targets.LogisticRegression()
def wrongly(**keys) -> dict: return {}
def vaguely(**keys) -> "Any": return {}
def raises(**keys) -> Both: raise RuntimeError("two\\nlines of trouble")
def exits(**keys) -> Both: raise SystemExit(3)
def asserts(**keys) -> Both: assert False
def nothing(**keys) -> Both: return None
def number(**keys) -> Both: return 3
def text(**keys) -> Both: return "target"
def needs(scale) -> Both: return dpmcmc.targets.LogisticRegression(prior_scale=scale)
constant = 5
class Empty: pass
class Half:
    def init(self, key): return 1.0
class Raising:
    def init(self, key): raise KeyError("init")
    def log_prior(self, params): raise ZeroDivisionError
    def log_likelihood(self, params, record): raise ZeroDivisionError
class Vague(Raising):
    def __repr__(self): raise RuntimeError("no repr")
class Lying(dpmcmc.SGLD):
    def noise_std(self, t): return float("nan")
class Wordy(dpmcmc.SGLD):
    def noise_std(self, t): return "loud"
class Failing(dpmcmc.SGLD):
    def noise_std(self, t): raise LookupError("no noise today")
class Stepless(dpmcmc.SGLD):
    def step(self, key, state, gradient, t): return None
class Breaking(dpmcmc.SGLD):
    def step(self, key, state, gradient, t): raise LookupError("no step today")
class Unbound(dpmcmc.SGLD):
    def bind(self, num_records): return None
class Cold(dpmcmc.SGLD):
    def temperature_at(self, noise_std, t): return "cold"
""",
    "malformed_syntax": "def (",
    "malformed_import": "import no_such_module_at_all\n",
    "malformed_raising": "1 / 0\n",
    "malformed_exit": "raise SystemExit(4)\n",
    "malformed_empty": "",
}
#: By the names that follow their module.
_ANY = [
    *("raises", "exits", "asserts", "nothing", "number", "text", "needs", "constant", "unsaid", "wrongly", "vaguely"),
    *("dpmcmc.SGLD", "Empty", "Half", "Raising", "Vague", "no_such", "raises.deeper", "__name__", "__dict__"),
]
_SAMPLERS = ["Lying", "Wordy", "Failing", "Stepless", "Breaking", "Unbound", "Cold"]
#: Beside the functions of the standard library that tests/engine/test_own_code.py names.
_NAMES = [
    *(":", "a:", ":b", "os:", "os.path:join.x", "..os:path", "os:path:join", "os;system:x", "1a:b", "a..b:c", "a b:c"),
    *("os.path:join", "os:abort_", "builtins:exit", "builtins:object", "json:loads", "sys:modules"),
]
_GOOD = yaml.safe_load((CONFIGS / "two_normals.yaml").read_text())
_MECHANISMS = ["ops", "certified_ops", "output_perturbation", "objective_perturbation", "sufficient_statistics"]


def _with(section: str, name: str, keys: str = "", mechanism: str | None = None) -> Make:
    body = dict(_GOOD)
    if mechanism is not None:
        body = {key: body[key] for key in ("name", "data", "target")} | {"privacy": {"epsilon": 1.0, "delta": 1e-4}}
        body["mechanism"] = {"name": mechanism} | ({"regularisation": 1.0} if "perturbation" in mechanism else {})

    def make(folder: Path) -> list[str]:
        plant(folder, {f"{module}.py": text.encode() for module, text in _MODULES.items()})
        return config(body, f"{section}={{name: '{name}'{keys}}}")(folder)

    return make


def modules() -> Iterator[Case]:
    """``module:attribute`` in every place that takes one."""
    for section in ("target", "sampler"):
        step = ", step_size: 1.0" if section == "sampler" else ""
        for name in [*_ANY, *(_SAMPLERS if section == "sampler" else [])]:
            make = _with(section, f"malformed_module:{name}", step)
            # A target may have its shapes from the data, so a plan does not call it.
            codes = EITHER if (section, name) == ("target", "Raising") else REFUSED
            yield Case(f"{section}-{name}-plan", "plan", make, codes, (section,))
            yield Case(f"{section}-{name}-run", "run", make, REFUSED, (section,))
        for module in _MODULES:
            yield Case(f"{section}-{module}", "plan", _with(section, f"{module}:x", step), REFUSED, (section,))
        for name in _NAMES:
            yield Case(f"{section}-{name}", "plan", _with(section, name), REFUSED, (section,))
        for number, keys in enumerate(
            [", 1: 2", ", scale: {schedule: [1]}", ", scale: {schedule: polynomial, a: -1}", ", scale: -1", ", size: 1"]
        ):
            make = _with(section, "malformed_module:needs", keys)
            yield Case(f"{section}-keys-{number}", "plan", make, REFUSED, (section,))
    for name in _ANY:
        for mechanism in _MECHANISMS:
            make = _with("target", f"malformed_module:{name}", mechanism=mechanism)
            yield Case(f"{mechanism}-of-{name}", "plan", make)
