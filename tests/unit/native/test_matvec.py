"""Every kernel family against fp64, over shapes that leave every kind of tail."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import support.native_family

FAMILIES = ["avx512_bf16", "avx512", "avx2", "plain"]
ROWS = [0, 1, 3, 4, 9]
COLUMNS = [0, 1, 7, 8, 9, 15, 16, 17, 31, 32, 33, 47, 63, 64, 65, 100, 576]


def bf16_bits(values: npt.NDArray[np.float32]) -> npt.NDArray[np.uint16]:
    return (values.view(np.uint32) >> 16).astype(np.uint16)


def widen(values: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    wide = (values.astype(np.uint32) << 16).view(np.float32) if values.dtype == np.uint16 else values
    return wide.astype(np.float64)


def inputs() -> dict[str, npt.NDArray[Any]]:
    random = np.random.default_rng(11)
    cases: dict[str, npt.NDArray[Any]] = {}
    for n in ROWS:
        for k in COLUMNS:
            weights = bf16_bits(random.standard_normal((n, k), dtype=np.float32))
            x = random.standard_normal(k, dtype=np.float32)
            for kind, values in (("bf16", bf16_bits(x)), ("fp32", x)):
                cases |= {f"weights/{n}x{k}-{kind}": weights, f"x/{n}x{k}-{kind}": values}
    # A value that is not finite shows in its own row and in no other, wherever the tail puts it.
    for k in COLUMNS[1:]:
        weights = np.full((5, k), 0x3F80, np.uint16)
        weights[2, k - 1] = 0x7FC0
        cases |= {f"weights/nan{k}-fp32": weights, f"x/nan{k}-fp32": np.ones(k, np.float32)}
        cases |= {f"weights/nan{k}-bf16": weights, f"x/nan{k}-bf16": np.full(k, 0x3F80, np.uint16)}
    return cases


@pytest.fixture(scope="module")
def cases(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, npt.NDArray[Any]]]:
    path = tmp_path_factory.mktemp("native") / "inputs.npz"
    made = inputs()
    np.savez(path, **made)  # type: ignore[arg-type]
    return path, made


@pytest.mark.parametrize("family", FAMILIES)
def test_a_family_equals_fp64(native: Any, family: str, cases: tuple[Path, dict[str, npt.NDArray[Any]]]) -> None:
    if family not in native.SUPPORTED_ISAS:
        pytest.skip(f"this processor cannot run {family}; it can run {', '.join(native.SUPPORTED_ISAS)}")
    path, given = cases
    answers = path.with_name(f"{family}.npz")
    done = subprocess.run(
        [sys.executable, support.native_family.__file__, str(path), str(answers)],
        env=os.environ | {"EMBERLINE_NATIVE_ISA": family},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    got = np.load(answers)
    assert str(got["isa"]) == family
    names = [name.partition("/")[2] for name in given if name.startswith("weights/")]
    assert len(names) == 2 * len(ROWS) * len(COLUMNS) + 2 * (len(COLUMNS) - 1)
    for name in names:
        weights, x = widen(given[f"weights/{name}"]), widen(given[f"x/{name}"])
        out, alone = got[f"out/{name}"], got[f"alone/{name}"]
        assert np.array_equal(out, alone, equal_nan=True), f"{name}: a row depends on its neighbours"
        if name.startswith("nan"):
            assert list(np.isnan(out)) == [False, False, True, False, False], name
            continue
        # fp32 sums of k products: each addition may err by half a unit in the last place of the partial sum.
        allowed = 2.0**-24 * (weights.shape[1] + 2) * (np.abs(weights) @ np.abs(x))
        assert (np.abs(out - weights @ x) <= allowed).all(), name


@pytest.mark.parametrize("family", FAMILIES)
def test_a_family_is_forced_or_refused(native: Any, family: str) -> None:
    done = load_with(family)
    if family in native.SUPPORTED_ISAS:
        assert (done.returncode, done.stdout) == (0, f"{family}\n"), done.stderr
    else:
        assert f"EMBERLINE_NATIVE_ISA is '{family}', and this processor can run" in done.stderr


def test_an_unknown_family_is_refused_with_the_choices(native: Any) -> None:
    done = load_with("sse9")
    assert done.returncode == 1
    assert (
        f"ImportError: EMBERLINE_NATIVE_ISA is 'sse9', and this processor can run {', '.join(native.SUPPORTED_ISAS)};"
        in done.stderr
    )


def test_the_best_family_is_the_default(native: Any) -> None:
    assert load_with("").stdout == f"{native.SUPPORTED_ISAS[0]}\n"
    assert native.SUPPORTED_ISAS[-1] == "plain"


def load_with(family: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", "from emberline_runtime import _native; print(_native.ISA)"],
        env=os.environ | {"EMBERLINE_NATIVE_ISA": family},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def good(n: int = 3, k: int = 4) -> dict[str, npt.NDArray[Any]]:
    return {"weights": np.zeros((n, k), np.uint16), "x": np.zeros(k, np.float32), "out": np.zeros(n, np.float32)}


@pytest.mark.parametrize(
    ("wrong", "error", "message"),
    [
        ({"weights": np.zeros(4, np.uint16)}, ValueError, r"weights has shape \[4\], it must have 2 dimensions"),
        ({"x": np.zeros((1, 4), np.float32)}, ValueError, r"x has shape \[1, 4\], it must have 1 dimension$"),
        ({"x": np.zeros(5, np.float32)}, ValueError, "x has 5 values, the rows of weights have 4"),
        ({"out": np.zeros(2, np.float32)}, ValueError, "out has 2 values, weights has 3 rows"),
        ({"weights": np.zeros((3, 4), np.float32)}, TypeError, "weights must be bf16"),
        ({"weights": np.zeros((3, 4), np.int16)}, TypeError, "weights must be bf16"),
        ({"x": np.zeros(4, np.float64)}, TypeError, "x must be float32 or bf16"),
        ({"out": np.zeros(3, np.float64)}, TypeError, "out must be float32"),
        ({"weights": np.zeros((3, 8), np.uint16)[:, ::2]}, ValueError, "weights is not contiguous"),
        ({"weights": np.zeros((4, 3), np.uint16).T}, ValueError, "weights is not contiguous"),
        ({"x": np.zeros(8, np.float32)[::-2]}, ValueError, "x is not contiguous"),
        ({"out": np.zeros(6, np.float32)[::2]}, ValueError, "out is not contiguous"),
        ({"out": [0.0] * 3}, TypeError, "incompatible function arguments"),
        ({"x": None}, TypeError, "incompatible function arguments"),
    ],
)
def test_wrong_arguments_are_refused(native: Any, wrong: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        native.matvec(**(good() | wrong))


def test_a_read_only_out_is_refused(native: Any) -> None:
    arguments = good()
    arguments["out"].setflags(write=False)
    with pytest.raises(TypeError, match="incompatible function arguments"):
        native.matvec(**arguments)


def test_an_out_inside_an_input_is_refused(native: Any) -> None:
    both = np.zeros(6, np.float32)
    with pytest.raises(ValueError, match="out shares memory with an input"):
        native.matvec(np.zeros((3, 4), np.uint16), both[:4], both[3:])


def test_read_only_inputs_are_taken(native: Any) -> None:
    x = memoryview(np.ones(4, np.float32).tobytes()).cast("f")
    weights = memoryview(np.full((2, 4), 0x4000, np.uint16).tobytes()).cast("H", (2, 4))
    out = np.zeros(2, np.float32)
    native.matvec(weights, x, out)
    assert list(out) == [8.0, 8.0]


def test_other_threads_run_meanwhile(native: Any) -> None:
    weights, x = np.zeros((1 << 15, 1 << 12), np.uint16), np.zeros(1 << 12, np.float32)
    out = np.zeros(1 << 15, np.float32)
    begun, ended = threading.Event(), threading.Event()

    def work() -> None:
        begun.set()
        native.matvec(weights, x, out)
        ended.set()

    worker = threading.Thread(target=work)
    worker.start()
    begun.wait()
    turns = 0
    while not ended.is_set():
        turns += 1
    worker.join()
    # With the lock held the loop gets at most the moments before the call and after it.
    assert turns > 1000


@pytest.mark.parametrize("num_words", [0, 1, 31, 32, 33, 1000])
def test_the_read_stream_reads_every_word(native: Any, num_words: int) -> None:
    words = np.random.default_rng(5).integers(0, 2**64, num_words, np.uint64)
    assert native.read_stream(words) == sum(map(int, words)) % 2**64
