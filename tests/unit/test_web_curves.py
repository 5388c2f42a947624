"""Curves as drawings: what is missing breaks a line, what stands alone is a dot, round numbers lie on the axes."""

import pytest

from ledger.web.curve_drawing import BOTTOM_UNITS, DOTTED_POINTS, LEFT_UNITS, RIGHT_UNITS, TOP_UNITS, draw, steps


def test_a_missing_value_breaks_the_line() -> None:
    drawing = draw([10, 20, 30, 40, 50], [[1.0, 2.0, None, 3.0, 4.0]])
    assert drawing is not None
    assert [path.count("L") for path in drawing.lines[0].paths] == [1, 1]
    assert len(drawing.lines[0].dots) == 4


def test_a_value_that_stands_alone_is_a_dot_however_many_there_are() -> None:
    places = list(range(1, DOTTED_POINTS + 10))
    lonely: list[float | None] = [None] * len(places)
    lonely[7] = 2.0
    drawing = draw(places, [[1.0] * len(places), lonely])
    assert drawing is not None
    assert [len(line.dots) for line in drawing.lines] == [0, 1]
    assert drawing.lines[1].paths == ()


def test_every_point_lies_within_the_axes() -> None:
    drawing = draw([1, 10**18], [[-3.5, 1e6], [None, 2.0]])
    assert drawing is not None
    for line in drawing.lines:
        for across, up in line.dots:
            assert LEFT_UNITS <= across <= RIGHT_UNITS
            assert TOP_UNITS <= up <= BOTTOM_UNITS
    assert drawing.across[0].words == "0"


def test_nothing_known_is_nothing_drawn() -> None:
    assert draw([1, 2], [[None, None]]) is None


@pytest.mark.parametrize(("low", "high"), [(0, 7), (2.134, 3.86), (-1e-9, 1e-9), (1e12, 3e12), (0, 0), (-5, -5)])
def test_marks_span_the_values(low: float, high: float) -> None:
    found = steps(low, high)
    assert found[0] <= low
    assert found[-1] >= high
    assert 3 <= len(found) <= 8
    assert found == sorted(set(found))
