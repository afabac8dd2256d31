"""report.html: one file that says what was released and what may be claimed, and is laid out well at two widths.

Pictures of a run: the same whether another process draws them or this one, and none is lost with that process.
"""

import dataclasses
import datetime
import html
import html.parser
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import numpy as np
import pytest

import dpmcmc
from dpmcmc.data import Counts, Levels, Range, Schema
from dpmcmc.planning.permitted_uses import BEST_FIT, IF_TRUE
from dpmcmc.privacy import Event, Guarantee, account
from dpmcmc.privacy.accounting.sampling import Poisson
from dpmcmc.report.circumstances import Circumstances
from dpmcmc.report.page import Context, plain_numbers
from dpmcmc.report.screen import uses
from tests.storage.test_result import N, chain, classes, logistic, released

DAY = datetime.date(2026, 11, 22)
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
HARD = "<script>alert(1)</script>"
LONG = ("a_column_with_a_name_that_never_ends_" * 3, HARD, "intercept")


def text(page):
    """The words of a page."""
    found = re.sub(r"<style>.*?</style>", "", page, flags=re.DOTALL)
    return " ".join(html.unescape(re.sub(r"<[^>]+>", " ", found)).split())


class Parsed(html.parser.HTMLParser):
    """Every address that a page loads, and whether each tag is closed."""

    EMPTY = ("meta", "img", "br", "link", "input")

    def __init__(self, page):
        super().__init__()
        self.open, self.loads = [], []
        self.feed(page)

    def handle_starttag(self, tag, attributes):
        self.loads += [value for name, value in attributes if name in ("src", "href", "srcset", "data")]
        if tag not in self.EMPTY:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def test_the_page_of_a_release_for_intervals():
    page = released().page(Context("census", DAY))
    words = text(page)
    assert "Intervals: yes" in words
    assert "We fitted a Bayesian logistic regression with independent normal priors of mean 0 and standard dev" in words
    assert "to N = 5,000 records with dpmcmc" in words
    assert "LogisticRegression(" not in words.split("All settings")[0]
    assert "Gaussian mechanisms, by Gaussian differential privacy" in words
    assert "bernstein2019" in words
    assert "ε = 1 and δ = 1e-06" in words
    assert "2026-11-22" in words
    parsed = Parsed(page)
    assert parsed.open == []
    assert parsed.loads == []
    assert "default-src 'none'" in page


@pytest.mark.parametrize(
    ("covariance", "condition", "other"), [("sandwich", BEST_FIT, IF_TRUE), ("model", IF_TRUE, BEST_FIT)]
)
def test_a_page_and_its_screen_say_one_condition_of_intervals(covariance, condition, other):
    """In the box, beside the table, in the paragraph for a paper, and on the console."""
    mechanism = dpmcmc.mechanisms.NoiseAware(draws=100, covariance=covariance)
    plan = mechanism.plan(logistic(), num_records=N, epsilon=1.0, delta=1e-6)
    result = released(plan=plan)
    words = text(result.page())
    assert words.count(condition) == 3
    assert other not in words
    assert condition in str(result.summary())
    assert other not in str(result.summary())
    ((_, said),) = uses(result.verdict, plan, "mine")
    assert (IF_TRUE in said) == (condition == IF_TRUE)


def test_the_page_of_a_table_says_what_was_estimated():
    page = classes(np.zeros((1, 100, 2, 3))).page()
    assert "<h1>mood ~ inc</h1>" in page
    words = text(page.split("What was estimated")[1].split("What may be claimed")[0])
    for said in (
        "Bayesian softmax (multinomial logistic) regression",
        "formula mood ~ inc",
        "levels not, pretty, very; coefficients are of the log odds of every level against the first, 'not'",
        "a number from 0 to 100, on the scale of log(1 + value)",
        "counted as its nearest bound",
        "every row is multiplied by 0.707",
        "standard deviation 1 for the coefficients of the encoded columns",
    ):
        assert said in words


def test_the_page_of_a_chain_refuses_intervals_and_draws_none():
    page = chain().page(Context("census", DAY))
    assert "Do not report intervals" in text(page)
    assert "<u style" not in page
    assert "<u style" in released().page()
    assert "5 %" not in text(page.split("What ε means")[0])


def rows(page, name):
    """Cells of the table of a class."""
    (table,) = re.findall(rf'<table class="{name}">.*?</table>', page, re.DOTALL)
    return [[text(cell) for cell in row.split("</td>")] for row in table.split("<tr>")[2:]]


def of_table(label, target):
    """A noise-aware release of a table with these labels."""
    schema = Schema({"age": Range(20, 60), "job": Levels(("none", "some")), "y": label}, label="y")
    plan = dpmcmc.mechanisms.NoiseAware(draws=100).plan(
        target, num_records=5000, epsilon=1.0, delta=1e-6, schema=schema
    )
    draws = np.random.default_rng(5).normal(0, 0.3, (1, 100, 4)).astype(np.float32)
    return dpmcmc.Result(plan, draws, draws, None, plan.guarantee, {"run": 1.0})


@pytest.mark.parametrize(
    ("label", "target", "ratio", "other"),
    [
        (Levels(("no", "yes")), dpmcmc.targets.LogisticRegression(), "odds", "rate"),
        (Counts(20), dpmcmc.targets.PoissonRegression(), "rate", "odds"),
    ],
)
def test_ratios_are_on_the_page_where_intervals_may_be_reported(label, target, ratio, other):
    result = of_table(label, target)
    page = result.page(Context("census", DAY))
    assert f"<h2>{ratio.capitalize()} ratios</h2>" in page
    assert f"{other} ratio" not in page
    table = rows(page, "effects")
    effects = result.effects()
    assert [row[0] for row in table] == [
        f"{name} {kind}" for name, kind in zip(effects.names, effects.kinds, strict=True)
    ]
    low, high = effects.intervals[1]
    assert [float(cell) for cell in table[1][2:4]] == pytest.approx([low, high], abs=0.05)
    assert Parsed(page).open == []


@pytest.mark.parametrize("result", [released, chain])
def test_no_ratios_are_on_the_page_of_draws_without_a_schema_or_without_intervals(result):
    assert "ratios</h2>" not in result().page(Context("census", DAY))
    label = Range(0, 1)
    assert "ratios</h2>" not in of_table(label, dpmcmc.targets.LinearRegression(label_bound=1.0)).page()


def test_the_questions_of_nist_are_answered_once_each():
    page = released().page(Context("census", DAY))
    part = page.split("<h2>What else to ask</h2>")[1].split("<h2>")[0]
    labels = re.findall(r"<dt>(.*?)</dt>", part)
    assert labels == ["unit of privacy", "threat model", "query model", "access", "collection", "small groups"]
    whole = text(page)
    for sentence in re.split(r"(?<=\.) ", text(part)):
        assert whole.count(sentence) == 1, sentence
    without = dataclasses.replace(released(), guarantee=None)
    assert "What else to ask" not in without.page(Context("census", DAY))


@pytest.mark.parametrize(
    ("records", "said"),
    [
        ("private", "The curator decides who may read the records"),
        (None, "The curator decides who may read the records"),
        ("public", "Nobody can be kept from records that are published"),
        ("generated", "No person was asked for anything"),
    ],
)
def test_access_and_collection_follow_from_whose_records_these_are(records, said):
    page = released().page(Context("census", DAY, circumstances=Circumstances(records)))
    found = {one for one in ("The curator decides", "Nobody can be kept", "No person was asked") if one in text(page)}
    assert found == {one for one in found if said.startswith(one)}
    assert said in text(page)


def test_a_small_group_is_judged_by_its_interval_or_not_at_all():
    assert "by the width of its interval" in text(released().page())
    result = chain()
    words = text(result.page())
    assert "Draw no conclusion about a small group" in words
    assert "draws estimates toward the common case" not in words
    clipped = dataclasses.replace(result.plan.verdict, clip_bias="likely")
    plan = dataclasses.replace(result.plan, verdict=clipped)
    assert "draws estimates toward the common case" in text(dataclasses.replace(result, plan=plan).page())


def test_only_noise_that_was_added_is_said_to_be():
    assert "Random noise was added" in text(released().page())
    law = {"delta": 1e-6, "adjacency": "replace_one", "accountant": "one_sample", "release": "one_sample"}
    draw = Guarantee.from_events((Event("posterior_draw", 8.0, 1.0, 1),), **law)
    drawn = text(dataclasses.replace(released(), guarantee=draw).page())
    assert "Random noise was added" not in drawn
    assert "The release is random" in drawn


def test_the_page_without_a_guarantee_promises_nothing():
    without = dataclasses.replace(released(), guarantee=None)
    page = text(without.page(Context("census", DAY, note="no privacy guarantee")))
    for said in ("No privacy guarantee.", "without differential privacy", "makes no promise"):
        assert said in page


def test_every_name_on_the_page_is_escaped_and_pictures_are_in_it():
    page = released(columns=LONG).page(Context(HARD, DAY, HARD, HARD, [(HARD, HARD)], {HARD: b"PNG"}))
    assert HARD not in page
    assert html.escape(HARD, quote=False) in page
    assert Parsed(page).loads == ["data:image/png;base64,UE5H"]


def test_plain_numbers_are_bounds_of_the_guarantee():
    """A test between two normal laws, which is the worst that a Gaussian mechanism allows, stays within the power."""
    from scipy.stats import norm

    guarantee = account(2.0, steps=1, sampling=Poisson(100), num_records=100, delta=1e-3, adjacency="zero_out")
    found = plain_numbers(guarantee)
    assert float(found["epsilon"]) >= guarantee.epsilon
    assert float(found["odds"]) >= np.exp(guarantee.epsilon)
    power = 100 * norm.cdf(norm.ppf(0.05) + 1 / 2.0)
    assert power <= found["power"] <= 2.5 * power
    assert 50 < found["belief"] <= 100


#: Tells the frame around it what a person would stumble over.
MEASURE = """<script>
const seen = [...document.querySelectorAll("main *")].filter(e => !e.closest("details") && e.offsetParent);
const over = seen.filter(e => e.getBoundingClientRect().right > innerWidth + 1 || e.getBoundingClientRect().left < -1);
const tiny = seen.filter(e => e.innerText && parseFloat(getComputedStyle(e).fontSize) < 12);
const dots = [...document.querySelectorAll(".axis b")].filter(e => e.offsetParent && e.offsetWidth > 4);
const columns = [...document.querySelectorAll(".forest tbody tr:first-child td")].filter(e => e.offsetParent);
parent.postMessage(JSON.stringify({width: innerWidth, scroll: document.documentElement.scrollWidth,
    over: over.map(e => e.outerHTML.slice(0, 80)), tiny: tiny.length, dots: dots.length, columns: columns.length,
    ground: getComputedStyle(document.body).backgroundColor}), "*");
</script></body>"""
#: A window of Chromium has a least width, and a frame has none.
FRAME = """<pre id="found"></pre><script>onmessage = e => { found.textContent = e.data; }</script>
<iframe width="WIDTH" height="2000" style="border:0" src="page.html"></iframe>"""


def measured(page, width, folder, *options):
    """Findings of a browser on a page of a width."""
    page = page.replace("</body>", MEASURE).replace("'none'", "'none'; script-src 'unsafe-inline'")
    (folder / "page.html").write_text(page, encoding="utf-8")
    (folder / "frame.html").write_text(FRAME.replace("WIDTH", str(width)), encoding="utf-8")
    browser = [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={folder / 'profile'}"]
    address = (folder / "frame.html").as_uri()
    done = subprocess.run(
        [*browser, *options, "--virtual-time-budget=3000", "--dump-dom", address],
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    (found,) = re.findall(r'<pre id="found">(.*?)</pre>', done.stdout, re.DOTALL)
    return json.loads(html.unescape(found))


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed, so nobody looks at the page")
@pytest.mark.parametrize(("width", "columns"), [(380, 6), (1200, 7)])
def test_the_page_fits_two_widths_in_a_browser(width, columns, tmp_path):
    """Nothing reaches beyond the window, no text is tiny, and every parameter has its dot and its interval."""
    page = released(columns=LONG).page(Context(LONG[0], DAY, LONG[0], "a warning", [("accuracy", LONG[0])]))
    found = measured(page, width, tmp_path)
    assert found["width"] == width
    assert found["scroll"] <= width
    assert found["over"] == []
    assert found["tiny"] == 0
    assert found["dots"] == 3
    assert found["columns"] == columns
    if width == 380:
        wide = measured(page.replace("<main>", '<main style="width:500px">'), width, tmp_path)
        assert wide["over"]  # the measurement itself
    else:
        dark = measured(page, width, tmp_path, "--blink-settings=preferredColorScheme=0")
        assert (found["ground"], dark["ground"]) == ("rgb(255, 255, 255)", "rgb(20, 24, 30)")


PROGRAM = """
    import datetime, multiprocessing, os, signal, sys
    from pathlib import Path
    from dpmcmc.report import pictures
    from dpmcmc.storage.run_folder import RunFolder

    def folder(name):
        return RunFolder(Path(sys.argv[1]) / name, datetime.date(2026, 1, 2))

    def begun():
        import numpy as np
        some = pictures.Pictures()
        some.begin("temperature", "", np.linspace(1, 2, 50), np.full(50, 3.0), "a title", None)
        some.begin("traces", "Traces", {"w": np.ones((2, 9))}, (10, 2), "a title", "a note")
        return some

    def child():
        pictures.start_drawing()
        (one,) = multiprocessing.active_children()
        return one

    one = child()
    os.kill(one.pid, signal.SIGINT)
    assert list(begun().save(folder("beside"))) == ["Traces"]
    assert "matplotlib" not in sys.modules, "drawn here"
    one.join()
    pictures._drawer = None
    begun().save(folder("here"))
    assert "matplotlib" in sys.modules

    one = child()
    some = begun()
    one.kill()
    one.join()
    some.save(folder("killed"))

    one = child()
    some = pictures.Pictures()
    some.begin("no_such_picture", "")
    try:
        some.save(folder("missing"))
    except AttributeError as error:
        assert "no_such_picture" in str(error)
    else:
        raise AssertionError
    one.join()

    print(child().pid, flush=True)
    os._exit(3)  # as a command that is killed
"""


@pytest.mark.skipif(
    sys.platform != "linux" or len(os.sched_getaffinity(0)) < 2, reason="pictures are drawn beside a run on two cores"
)
def test_pictures_are_the_same_beside_and_here_and_outlive_the_process_that_draws(tmp_path):
    program = textwrap.dedent(PROGRAM)
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)], stdout=subprocess.PIPE, text=True, check=False, timeout=300
    )
    assert done.returncode == 3
    drawn = {path.name: path.read_bytes() for path in (tmp_path / "beside" / "figures").iterdir()}
    assert sorted(drawn) == ["temperature.png", "traces.png"]
    for other in "here", "killed":
        assert {path.name: path.read_bytes() for path in (tmp_path / other / "figures").iterdir()} == drawn
    _ends(int(done.stdout))


def _ends(pid: int) -> None:
    """Wait until a process is gone, or is a zombie that nobody waits for."""
    for _ in range(600):
        try:
            if Path(f"/proc/{pid}/stat").read_text().split()[2] == "Z":
                return
        except FileNotFoundError:
            return
        time.sleep(0.1)
    os.kill(pid, signal.SIGKILL)
    raise AssertionError("the process that draws outlives its command")
