r"""The list of tables, and what is public about their columns.

The list was committed before the first run, and no table was left out or changed after one. Tables were chosen by kind:
strong and weak effects, collinear columns, rare labels, counts with overdispersion, heavy tails, 1 to 100 columns, few
and many records; labels that are binary, of several classes, counts and real.

Ranges and levels are those that a person who knows what a column means would declare without looking at the data: by
the documentation of the table, by the design of the survey, or by common knowledge. Each has its reason beside it. None
is the least or the largest value of the data, and values beyond a range are clipped, by the library and by every rival
alike. Rows with a missing value are left out. Some tables have several records of a person; a record is protected.

Tables that this repository used before, to choose rules or in its documentation, are not in the list: UCI Adult and
Abalone, ``401ksubs``, ``fertil2``, ``twoyear``, ``cps91``, ``gpa2``, ``thornton_hiv`` and ``credit_cards``. Four more
are kept for checks by others, and are refused by a test: diamonds, VietNamI, randhie (in several packages) and fair.

Tables marked ``quick`` come with scikit-learn, so ``--quick`` needs nothing beyond the extra ``dev``, and no network.
"""

from experiments.benchmark.tables import binary, classes, counts, reals, sklearn_tables
from experiments.benchmark.tables.declared import Table

TABLES: dict[str, Table] = {
    table.name: table for family in (binary, counts, reals, classes, sklearn_tables) for table in family.TABLES
}
#: Names that are kept for checks by others, in lower case, with the names that packages give them.
KEPT = ("diamonds", "vietnam", "randhie", "doctorcontacts", "medexp", "fair", "affairs")
