"""Malformed configs, data files, folders and saved guarantees: the same ones every time.

``settings`` spoils every key of every shipped config in turn; the other rooms hold what no edit of a value reaches.
Whether a case must be refused is coarse on purpose: a value of a type that its key does not take must be, one that may
make sense may also run.
"""

from tests.malformed.case import Case, everything, tree
from tests.malformed.everywhere import experiment_settings, flags, inputs, numbers, outputs, pipes
from tests.malformed.folders import places, resumes
from tests.malformed.guarantees import damaged, saved
from tests.malformed.ledgers import ledgers
from tests.malformed.own_code import modules
from tests.malformed.records import archives, arrays, declared, official, owners
from tests.malformed.settings import pairs, sections, values
from tests.malformed.texts import files, overrides

__all__ = ["EVERYWHERE", "GROUPS", "Case", "everything", "tree"]

#: Every kind of bad input; each is a function of no arguments that yields its cases.
GROUPS = (
    values,
    pairs,
    sections,
    files,
    overrides,
    modules,
    arrays,
    archives,
    declared,
    owners,
    official,
    places,
    resumes,
    saved,
    damaged,
    ledgers,
)
#: For every command and experiment.
EVERYWHERE = (inputs, outputs, numbers, flags, experiment_settings, pipes)
