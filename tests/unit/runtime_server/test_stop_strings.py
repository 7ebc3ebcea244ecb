"""Stop strings, however the text is cut."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from emberline_runtime.text.stop_strings import StopMatcher

patient = settings(deadline=None, max_examples=200)
PIECES = st.lists(st.text("abc ", max_size=4), max_size=20)
STOPS = st.lists(st.text("abc ", min_size=1, max_size=6), min_size=1, max_size=4).map(tuple)


def shown(pieces: list[str], stops: tuple[str, ...]) -> tuple[list[str], str | None]:
    matcher = StopMatcher(stops)
    texts = []
    for piece in pieces:
        passed = matcher.push(piece)
        texts.append(passed.text)
        if passed.stop is not None:
            return texts, passed.stop
    return [*texts, matcher.flush()], None


def first_stop(pieces: list[str], stops: tuple[str, ...]) -> tuple[str, str | None]:
    """The definition: after each piece, the whole text is searched for the earliest stop."""
    text = ""
    for piece in pieces:
        text += piece
        found = [(text.find(stop), -len(stop), stop) for stop in stops if stop in text]
        if found:
            position, _, stop = min(found)
            return text[:position], stop
    return text, None


@patient
@given(PIECES, STOPS)
def test_shows_everything_before_the_first_stop_and_nothing_else(pieces: list[str], stops: tuple[str, ...]) -> None:
    texts, stop = shown(pieces, stops)
    assert ("".join(texts), stop) == first_stop(pieces, stops)


@patient
@given(PIECES, STOPS)
def test_never_shows_what_could_still_become_a_stop(pieces: list[str], stops: tuple[str, ...]) -> None:
    matcher = StopMatcher(stops)
    text = ""
    for piece in pieces:
        passed = matcher.push(piece)
        text += passed.text
        assert not any(stop in text for stop in stops)
        if passed.stop is not None:
            return


@patient
@given(PIECES, STOPS)
def test_what_is_held_begins_at_a_token(pieces: list[str], stops: tuple[str, ...]) -> None:
    matcher = StopMatcher(stops)
    length = 0
    for num_pushed, piece in enumerate(pieces, 1):
        passed = matcher.push(piece)
        length += len(passed.text)
        if passed.stop is not None:
            return
        ends = {len("".join(pieces[:count])) for count in range(num_pushed + 1)}
        assert length in ends


@pytest.mark.parametrize(
    ("pieces", "stops", "text", "stop"),
    [
        (["alpha ", "beta ", "gam", "ma delta"], ("beta gamma",), "alpha ", "beta gamma"),
        (["x", "DEF", "G", "HI", "J"], ("DEFGHIJ",), "x", "DEFGHIJ"),
        (["aab", "aac"], ("aac", "aabaac"), "", "aabaac"),
        (["a", "b"], ("ab", "b"), "", "ab"),
        (["ab"], ("abc",), "ab", None),
    ],
)
def test_cases(pieces: list[str], stops: tuple[str, ...], text: str, stop: str | None) -> None:
    texts, found = shown(pieces, stops)
    assert ("".join(texts), found) == (text, stop)


def test_without_stops_nothing_is_held() -> None:
    assert shown(["a", "b"], ())[0] == ["a", "b", ""]
