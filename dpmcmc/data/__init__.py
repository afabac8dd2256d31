"""Sources of records: benchmark sets, generated sets, a user's own ``.npz`` file or folder of ``.npy`` files.

There are two functions, and their order matters for privacy:

``describe(config)`` says what is public about a data set (:class:`DataSpec`) and opens no data file, so a
plan can be made, printed and calibrated before a single record has been read.

``load(config)`` reads the records, checks them, and returns a :class:`DataSet` of plain numpy arrays::

    import dpmcmc
    adult = dpmcmc.data.load("adult", encoding="public", standin="allow")
    adult.train["x"].shape      # (32561, 109)
    adult.origin                # "DPMCMC_DATA", "cache", "download" or "stand-in"

Every scaling constant is written in the code, and every row is scaled by itself alone: nothing that is
computed from several records (a maximum, a mean, a level list) ever reaches the features, because such a
statistic would be an unaccounted release.

A table with a ``Schema`` of public ranges and levels becomes records without any of that by hand (``docs/data.md``).

Files: ``schema`` (of ``column_kinds``, read from ``tables``, chosen by a ``formula``); ``adult``, ``abalone`` (UCI);
``store`` (finds those files, has scikit-learn's, generates others); ``user_file`` (also folders of records
larger than memory, and rows grouped by owner); ``columnar`` converts Parquet and Arrow to such a folder; ``partitions``
(tables that are read where they are computed, file by file); ``known_columns`` (as a ledger knows them);
``randomised_labels`` (labels that are changed at random before a plan); ``base``, ``checks`` are shared.
A new data set is one file and one line of ``registry.REGISTRY``.
"""

from dpmcmc.data.base import DataRequest as DataRequest
from dpmcmc.data.base import DataSet as DataSet
from dpmcmc.data.base import DataSpec as DataSpec
from dpmcmc.data.column_kinds import Counts as Counts
from dpmcmc.data.column_kinds import Levels as Levels
from dpmcmc.data.column_kinds import Range as Range
from dpmcmc.data.columnar import to_rows as to_rows
from dpmcmc.data.randomised_labels import randomise_labels as randomise_labels
from dpmcmc.data.registry import NAMES as NAMES
from dpmcmc.data.registry import describe as describe
from dpmcmc.data.registry import load as load
from dpmcmc.data.schema import Schema as Schema
from dpmcmc.data.user_file import by_owner as by_owner
from dpmcmc.errors import DataError as DataError
