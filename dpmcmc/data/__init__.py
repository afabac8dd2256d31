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

``schema``       public facts of a table's columns (``column_kinds``), chosen by a ``formula`` (``terms``, ``span``)
``tables``       columns of a table, read by ``containers`` into ``values``;  ``table_files`` of a path or a dataset
``partitions``   tables that are read where they are computed (``one_partition``, ``encoded_partitions``)
``request``      what a user asks for;  ``base`` public facts and records;  ``registry`` known sets by name
``user_file``    a user's own records, ``row_folder`` those beyond memory, ``owners`` rows grouped by owner
``columnar``     Parquet and Arrow files;  ``conversion`` of them to such a folder
``adult``, ``abalone``   sets from UCI, whose files ``store`` finds;  ``bundled`` with scikit-learn;  ``generated``
``one_record``   one person's own record (``raw_records``);  ``known_columns`` a table as a ledger knows it
``checks``, ``row_maps``, ``split``, ``structure``, ``public_facts``   what all of these share

A new data set is one file and one line of ``registry.REGISTRY``.
"""

from dpmcmc.data.base import DataSet as DataSet
from dpmcmc.data.base import DataSpec as DataSpec
from dpmcmc.data.column_kinds import Counts as Counts
from dpmcmc.data.column_kinds import Levels as Levels
from dpmcmc.data.column_kinds import Range as Range
from dpmcmc.data.conversion import to_rows as to_rows
from dpmcmc.data.owners import by_owner as by_owner
from dpmcmc.data.randomised_labels import randomise_labels as randomise_labels
from dpmcmc.data.registry import NAMES as NAMES
from dpmcmc.data.registry import describe as describe
from dpmcmc.data.registry import load as load
from dpmcmc.data.request import DataRequest as DataRequest
from dpmcmc.data.schema import Schema as Schema
from dpmcmc.errors import DataError as DataError
