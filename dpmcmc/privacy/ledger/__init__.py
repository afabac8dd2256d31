"""The ledger: the budget of a data set, in a file or a database, which admits runs until it is spent.

``ledger``    the room's face: ``init``, ``reserve``, ``begin``, ``settle``
``book``      what the entries add up to;  ``state`` the account for people
``terms``     what ``init`` fixes;  ``filters`` which total may be spent when runs are chosen adaptively, with proofs
``event_cost``  what one event costs in a filter;  ``programme`` runs fixed in advance
``largest_epsilon``  which ε a refused run should ask for
``file``      lines of JSON, kept in one ``locked_file``
``postgres``  tables of PostgreSQL, which several machines share
``place``     a file's path, or the URL of a database
``chain``     entries that cannot be removed or edited unnoticed
"""

from dpmcmc.privacy.ledger.book import Run
from dpmcmc.privacy.ledger.chain import BrokenChain, Entry, LedgerError, Receipt
from dpmcmc.privacy.ledger.ledger import Ledger, OverBudget
from dpmcmc.privacy.ledger.state import State
from dpmcmc.privacy.ledger.terms import Terms

__all__ = [
    "BrokenChain",
    "Entry",
    "Ledger",
    "LedgerError",
    "OverBudget",
    "Receipt",
    "Run",
    "State",
    "Terms",
]
