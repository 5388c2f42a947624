"""The sampling lab in a real browser: by click, by typing, by keyboard; its figures are the service's and SciPy's."""

import time
from collections.abc import Iterator
from typing import Any

import pytest
from scipy.stats import binom
from selenium.webdriver.common.keys import Keys

from browser import Browser, browser
from ledger.domain.sampling import binomial_masses
from server import LedgerServer

WAIT_SECONDS = 10


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LedgerServer]:
    """A service without a run."""
    folder = tmp_path_factory.mktemp("lab")
    with LedgerServer(f"sqlite:///{folder / 'ledger.db'}", folder / "log") as started:
        yield started


@pytest.fixture(scope="module")
def opened() -> Iterator[Browser]:
    """The browser."""
    with browser() as found:
        yield found


@pytest.fixture
def window(opened: Browser, server: LedgerServer) -> Browser:
    """The lab, freshly opened."""
    opened.complaints()
    opened.size(1280)
    opened.scheme("light")
    opened.open(f"{server.url}/lab")
    wait(opened, "return document.getElementById('binomial').dataset.shown", "0.5 20")
    wait(opened, "return Boolean(document.getElementById('ranks').dataset.shown)", True)
    return opened


def wait(window: Browser, script: str, wanted: object) -> Any:
    """The value of a script as soon as it is as wanted; the last one otherwise."""
    deadline = time.monotonic() + WAIT_SECONDS
    while (found := window.run(script)) != wanted and time.monotonic() < deadline:
        time.sleep(0.02)
    assert found == wanted, script
    return found


def text(window: Browser, name: str) -> str:
    """What an element shows."""
    return str(window.run("return document.getElementById(arguments[0]).innerText", name))


def write(window: Browser, name: str, value: str) -> None:
    """Type into a field as a person does."""
    field = window.driver.find_element("id", name)
    field.send_keys(Keys.CONTROL, "a")
    field.send_keys(value)


def click(window: Browser, selector: str) -> None:
    """Click on what a selector names."""
    window.driver.find_element("css selector", selector).click()


def heights(window: Browser) -> dict[int, float]:
    """How tall each bar is."""
    tall = "bar => [Number(bar.dataset.k), Number(bar.getAttribute('height'))]"
    return dict(window.run(f"return [...document.querySelectorAll('#masses .mass')].map({tall})"))


def mulberry(seed: int) -> Iterator[float]:
    """The page's generator of numbers between 0 and 1, as it is published."""
    mask, state = 0xFFFFFFFF, seed
    while True:
        state = (state + 0x6D2B79F5) & mask
        mixed = ((state ^ (state >> 15)) * (state | 1)) & mask
        mixed ^= (mixed + ((mixed ^ (mixed >> 7)) * (mixed | 61) & mask)) & mask
        yield ((mixed ^ (mixed >> 14)) & mask) / 2**32


def outcomes(p: float, n: int, seed: int, count: int) -> list[int]:
    """The outcomes that a playback draws."""
    numbers, masses, found = mulberry(seed), binomial_masses(p, n), []
    for number in (next(numbers) for _ in range(count)):
        reached, k = masses[0], 0
        while number >= reached and k < n:
            k += 1
            reached += masses[k]
        found.append(k)
    return found


def pointed(window: Browser) -> list[int]:
    """The outcomes whose bars are highlighted."""
    found: list[int] = window.run("return [...document.querySelectorAll('#masses .hit')].map(bar => Number(bar.dataset.k))")
    return found


@pytest.mark.parametrize(("place", "n", "variance"), [(2, 100, "0.0025"), (1, 20, "0.0125")])
def test_presets_show_the_predicted_mean_and_variance(window: Browser, place: int, n: int, variance: str) -> None:
    click(window, f"#binomial-controls .pill:nth-child({place})")
    wait(window, "return document.getElementById('binomial').dataset.shown", f"0.5 {n}")
    assert [text(window, "mean"), text(window, "variance")] == ["0.5", variance]
    assert window.run("return [document.getElementById('p').value, document.getElementById('n').value]") == ["0.5", str(n)]
    assert window.complaints() == []


@pytest.mark.parametrize(("p", "n"), [("0.5", 20), ("0.3", 7), ("0.02", 1000), ("1e-9", 1000), ("0", 5), ("1", 5), ("0.5", 1000)])
def test_bars_and_table_are_scipys_masses(window: Browser, server: LedgerServer, p: str, n: int) -> None:
    write(window, "p", p)
    write(window, "n", str(n))
    wait(window, "return document.getElementById('binomial').dataset.shown", f"{window.run(f'return String({p})')} {n}")
    click(window, "#whole")
    click(window, "#as-table summary")
    wait(window, "return document.getElementById('rows').rows.length", n + 1)
    cells: list[list[str]] = window.run("return [...document.getElementById('rows').rows].map(r => [...r.cells].map(c => c.textContent))")
    shown = [float(row[2]) for row in cells]
    answered = server.call("GET", f"/v1/lab/binomial?p={p}&n={n}")
    assert shown == answered["masses"] == binomial_masses(float(p), n)
    assert shown == pytest.approx(binom.pmf(range(n + 1), n, float(p)).tolist(), rel=1e-12, abs=1e-300)
    tall = heights(window)
    assert sorted(tall) == list(range(n + 1))
    highest = max(shown)
    assert [tall[k] for k in sorted(tall)] == pytest.approx([mass / highest * 198 for mass in shown], abs=1e-6)
    assert window.complaints() == []


def test_playback_points_at_drawn_outcomes_and_changes_no_bar(window: Browser) -> None:
    before = heights(window)
    found = []
    for _ in range(6):
        click(window, "#step")
        found += pointed(window)
    assert found == outcomes(0.5, 20, 1, 6)
    assert heights(window) == before
    assert text(window, "draws") == "6"
    mean = sum(found) / 20 / 6
    assert float(text(window, "drawn-mean").split()[0]) == pytest.approx(mean, rel=1e-5)
    assert float(text(window, "drawn-variance").split()[0]) == pytest.approx(sum((k / 20 - mean) ** 2 for k in found) / 5, rel=1e-5)
    assert text(window, "told").startswith(f"Sample 6: {found[-1]} success")
    write(window, "seed", "7")
    click(window, "#step")
    assert pointed(window) == outcomes(0.5, 20, 7, 1)


def test_play_goes_on_by_itself_and_stops(window: Browser) -> None:
    before = heights(window)
    click(window, "#play")
    assert text(window, "play") == "Pause"
    deadline = time.monotonic() + WAIT_SECONDS
    while int(text(window, "draws")) < 3 and time.monotonic() < deadline:
        time.sleep(0.05)
    click(window, "#play")
    count = int(text(window, "draws"))
    assert count >= 3
    assert pointed(window) == outcomes(0.5, 20, 1, count)[-1:]
    time.sleep(0.8)
    assert int(text(window, "draws")) == count
    assert heights(window) == before
    assert text(window, "play") == "Play"


def test_reset_is_the_beginning(window: Browser) -> None:
    write(window, "p", "0.25")
    write(window, "n", "40")
    wait(window, "return document.getElementById('binomial').dataset.shown", "0.25 40")
    click(window, "#step")
    click(window, "#reset")
    wait(window, "return document.getElementById('binomial').dataset.shown", "0.5 20")
    assert [text(window, "draws"), pointed(window)] == ["0", []]
    click(window, "#step")
    assert pointed(window) == outcomes(0.5, 20, 1, 1)


def test_everything_is_done_by_keyboard(window: Browser) -> None:
    slider = window.driver.find_element("id", "p-slider")
    slider.send_keys(Keys.ARROW_RIGHT)
    wait(window, "return document.getElementById('binomial').dataset.shown", "0.501 20")
    window.driver.find_element("id", "n-slider").send_keys(Keys.END)
    wait(window, "return document.getElementById('binomial').dataset.shown", "0.501 1000")
    window.driver.find_element("id", "step").send_keys(Keys.ENTER)
    assert text(window, "draws") == "1"
    window.driver.find_element("id", "step").send_keys(Keys.SPACE)
    assert text(window, "draws") == "2"
    window.driver.find_element("css selector", "#as-table summary").send_keys(Keys.ENTER)
    wait(window, "return document.getElementById('rows').rows.length", 1001)
    window.driver.find_element("id", "add-rank").send_keys(Keys.ENTER)
    assert window.run("return document.activeElement.getAttribute('aria-label')") == "Rank 2, valid targets"
    assert window.complaints() == []


def test_every_control_has_a_name_and_the_chart_has_words(window: Browser) -> None:
    nameless = window.driver.execute_script(
        "return [...document.querySelectorAll('main input, main button')].filter(e => !(e.labels && e.labels.length)"
        " && !e.getAttribute('aria-label') && !e.innerText.trim()).map(e => e.outerHTML)"
    )
    assert nameless == []
    for chart in ("masses", "weights"):
        words = "return document.getElementById(document.getElementById(arguments[0]).getAttribute('aria-labelledby')).innerText"
        assert len(window.run(words, chart)) > 40


@pytest.mark.parametrize(
    ("name", "value"), [("p", "1.5"), ("p", "-0.1"), ("p", "half"), ("n", "0"), ("n", "1001"), ("n", "2.5"), ("seed", "x")]
)
def test_what_cannot_be_is_said_and_draws_nothing(window: Browser, name: str, value: str) -> None:
    before = heights(window)
    field = "const field = document.getElementById(arguments[0]); field.value = arguments[1]; field.dispatchEvent(new Event('input'))"
    window.run(field, name, value)
    assert text(window, "binomial-error").startswith({"p": "p is", "n": "n is", "seed": "The seed is"}[name])
    assert window.run("return document.getElementById(arguments[0]).getAttribute('aria-invalid')", name) == "true"
    assert heights(window) == before
    assert window.run("return document.getElementById('step').disabled") is True
    assert window.complaints() == []


def test_an_answer_that_comes_late_does_not_take_a_refusal_back(window: Browser) -> None:
    write(window, "n", "1001")
    time.sleep(0.5)
    assert text(window, "binomial-error").startswith("n is")


def test_a_thousand_draws_do_not_freeze_the_page(window: Browser) -> None:
    took = window.run(
        "const n = document.getElementById('n'), start = performance.now(); n.value = '1000';"
        "n.dispatchEvent(new Event('input', {bubbles: true}));"
        "return new Promise(done => { const wait = () => document.getElementById('binomial').dataset.shown === '0.5 1000'"
        " ? done(performance.now() - start) : setTimeout(wait, 5); wait(); })"
    )
    assert took < 1000


def figures(window: Browser) -> list[list[str]]:
    """The table of factors."""
    script = "return [...document.querySelectorAll('#factors tbody tr')].map(r => [...r.cells].map(c => c.innerText))"
    found: list[list[str]] = window.run(script)
    return found


def shown_call(window: Browser, server: LedgerServer, times: int) -> dict[str, Any]:
    """What the call behind the second instrument answers, once that many ranks are in it."""
    script = "return (document.getElementById('ranks').dataset.shown.match(/valid_targets/g) || []).length"
    wait(window, script, times)
    found: dict[str, Any] = server.call("GET", str(window.run("return document.getElementById('ranks').dataset.shown")))
    return found


def test_means_and_scale_of_ranks_are_the_services(window: Browser, server: LedgerServer) -> None:
    found = shown_call(window, server, 2)
    assert [text(window, name) for name in ("token-mean", "mean-of-rank-means", "loss-scale")] == ["2.5", "3", "0.05"]
    assert [found["token_mean"], found["mean_of_rank_means"], found["loss_scale"]] == [2.5, 3.0, 0.05]
    assert figures(window) == [["0", "2", "1", "0.5", "0.666667"], ["1", "4", "1", "0.5", "2"]]
    assert text(window, "verdict") == found["statement"]


def test_ranks_are_added_edited_and_removed(window: Browser, server: LedgerServer) -> None:
    click(window, "#add-rank")
    window.driver.switch_to.active_element.send_keys(Keys.CONTROL, "a")
    window.driver.switch_to.active_element.send_keys("0")
    wait(window, "return document.querySelectorAll('#factors tbody tr')[2]?.cells[1].innerText", "none")
    found = shown_call(window, server, 3)
    assert found["rank_count"] == 3
    assert text(window, "loss-scale") == "0.075"
    assert figures(window)[2] == ["2", "none", "none", "none", "none"]
    click(window, "[aria-label='Remove rank 0']")
    assert shown_call(window, server, 2)["valid_targets"] == 10
    assert text(window, "token-mean") == "6"
    click(window, "input[value='sum']")
    wait(window, "return document.getElementById('scale-rule').innerText", "1/T")
    click(window, "#reset-ranks")
    wait(window, "return document.getElementById('mean-of-rank-means').innerText", "3")
    assert window.complaints() == []


def test_no_targets_at_all_is_no_mean(window: Browser) -> None:
    for place, value in ((0, "0"), (2, "0")):
        field = window.driver.find_elements("css selector", "#rank-rows input")[place]
        field.send_keys(Keys.CONTROL, "a")
        field.send_keys(value)
    wait(window, "return document.getElementById('token-mean').innerText", "none")
    assert [text(window, "mean-of-rank-means"), text(window, "loss-scale")] == ["none", "none"]
    assert "NaN" not in window.text()


def test_it_says_what_it_does_not_say(window: Browser) -> None:
    said = window.text()
    assert "The tokens of a document are correlated." in said
    assert "nothing here gives an effective sample size" in said
    assert "law for an optimizer" in said


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_it_fits_its_window(window: Browser, width: int, scheme: str) -> None:
    window.size(width)
    window.scheme(scheme)
    click(window, "[data-ranks^='4000']")
    wait(window, "return document.querySelectorAll('#factors tbody tr').length", 4)
    assert window.run("return [document.documentElement.scrollWidth, document.body.getBoundingClientRect().width]") == [width, width]
    assert window.complaints() == []


def test_less_motion_where_it_is_wished(window: Browser) -> None:
    features = [{"name": "prefers-reduced-motion", "value": "reduce"}]
    window.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
    style = "return getComputedStyle(document.querySelector('#masses .pointer')).transitionDuration"
    assert window.run(style) == "0s"
    window.scheme("light")
    assert window.run(style) != "0s"
