"""The Python reference: every public name has an entry, and every public class an example that runs."""

import doctest
import functools
import importlib
import inspect
import re
import warnings
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
#: Modules whose ``__all__``, or whose own functions and classes, are public.
PUBLIC = (
    "dpmcmc",
    "dpmcmc.samplers",
    "dpmcmc.targets",
    "dpmcmc.mechanisms",
    "dpmcmc.estimators",
    "dpmcmc.data",
    "dpmcmc.inference",
    "dpmcmc.inference.predictive",
    "dpmcmc.inference.convergence",
    "dpmcmc.diagnostics",
    "dpmcmc.diagnostics.per_instance",
    "dpmcmc.diagnostics.per_record",
    "dpmcmc.audit",
    "dpmcmc.privacy",
    "dpmcmc.privacy.ledger",
    "dpmcmc.testing",
    "dpmcmc.errors",
)
#: Public in name alone: parts of other functions, which no page need explain.
PARTS = {
    "dpmcmc.errors.Carried",
    "dpmcmc.errors.Checked",
    "dpmcmc.errors.alternatives",
    "dpmcmc.errors.check_fields",
    "dpmcmc.errors.meant",
    "dpmcmc.errors.printable",
    "dpmcmc.errors.quoted",
    "dpmcmc.errors.redacted",
    "dpmcmc.errors.shown",
    "dpmcmc.errors.without_password",
    "dpmcmc.inference.predictive.Predicts",
}
#: Examples that run a chain, or fit several models.
LONG = ("SecretKey", "Trace", "PerRecord", "PersonalReceipt", "AuditReport", "GradientQuery", "Result", "Evidence")


def documented(room):
    """(path, object) of the public functions and classes of a module."""
    module = importlib.import_module(room)
    package = module.__spec__.submodule_search_locations is not None
    for name in getattr(module, "__all__", None) or vars(module):
        found = getattr(module, name)
        path = f"{room}.{name}"
        if name.startswith("_") or path in PARTS or not (inspect.isclass(found) or inspect.isfunction(found)):
            continue
        if (package and found.__module__.startswith("dpmcmc")) or found.__module__ == room:
            yield path, found


def entries():
    """(path, object) of every entry of the reference's pages."""
    for page in sorted((ROOT / "docs" / "reference").glob("*.md")):
        room = ""
        for line in page.read_text(encoding="utf-8").splitlines():
            if found := re.fullmatch(r"\.\. currentmodule:: (\S+)", line):
                room = found[1]
            elif found := re.fullmatch(r"\.\. auto(?:class|exception|function):: (\w+)", line):
                yield f"{room}.{found[1]}", getattr(importlib.import_module(room), found[1])


ENTRIES = dict(entries())
NAMES = {path: found for room in PUBLIC for path, found in documented(room)}
#: Public ones, and others with an example, by their entry.
CLASSES = {
    path: found
    for path, found in ENTRIES.items()
    if inspect.isclass(found) and (found in NAMES.values() or ">>>" in found.__doc__)
}


def test_every_public_name_has_one_entry():
    there = list(ENTRIES.values())
    assert len(there) == len(set(there)) > 100
    assert [path for path, found in NAMES.items() if found not in there] == []


def test_no_property_begins_with_a_type():
    """Sphinx takes what stands before a colon in the first line of a property's docstring for a type."""
    wrong = [
        f"{path}.{name}"
        for path, found in ENTRIES.items()
        if inspect.isclass(found)
        for name, member in inspect.getmembers(found)
        if isinstance(member, property | functools.cached_property)
        if re.search(r":(?!`)\s", (member.__doc__ or "").partition("\n")[0])
    ]
    assert wrong == []


@pytest.mark.parametrize(
    "path",
    [pytest.param(path, marks=[pytest.mark.slow] * (path.split(".")[-1] in LONG)) for path in CLASSES],
)
def test_every_public_class_has_an_example_that_runs(path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    example = doctest.DocTestParser().get_doctest(CLASSES[path].__doc__, {}, path, None, 0)
    assert any(step.want for step in example.examples) or "simplefilter" in example.docstring
    said = []
    with warnings.catch_warnings():
        failed, _ = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(example, out=said.append)
    assert not failed, "".join(said)


def test_a_wrong_example_is_seen():
    wrong = doctest.DocTestParser().get_doctest(">>> 1 + 1\n3\n", {}, "wrong", None, 0)
    assert doctest.DocTestRunner(verbose=False).run(wrong, out=lambda _: None).failed == 1
