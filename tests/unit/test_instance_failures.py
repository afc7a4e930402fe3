"""How what goes wrong in user code is told."""

from __future__ import annotations

import pytest

from samovar import wire
from samovar.errors import Cancelled, DeployRefused, InvalidInput, QueueFull
from samovar_instance import devices, failures
from samovar_instance.failures import Fault
from samovar_instance.leaks import has_leaked


class Unprintable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


class OutOfMemoryError(RuntimeError):
    """As torch's: known by its name and its module."""


OutOfMemoryError.__module__ = "torch"


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (KeyError("tea"), Fault("function_raised", 500, "KeyError: 'tea'", {"type": "KeyError"})),
        (SystemExit(3), Fault("function_raised", 500, "SystemExit: 3", {"type": "SystemExit"})),
        (KeyboardInterrupt(), Fault("function_raised", 500, "KeyboardInterrupt", {"type": "KeyboardInterrupt"})),
        (InvalidInput("too hot", path="$.t"), Fault("invalid_input", 422, "too hot", {"path": "$.t"})),
        (QueueFull("full", retry_after_s=2.0), Fault("queue_full", 503, "full", {"retry_after_s": 2.0})),
        (DeployRefused("no samovar"), Fault("deploy_refused", 422, "no samovar")),
        (Cancelled(), failures.CANCELLED),
        (
            MemoryError(),
            Fault(
                "function_raised",
                500,
                "MemoryError (the limit is sv.Resources(memory_gib=…))",
                {"type": "MemoryError", "reason": "out_of_memory"},
            ),
        ),
        (
            OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB"),
            Fault(
                "function_raised",
                500,
                "OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB",
                {"type": "OutOfMemoryError", "reason": "out_of_memory"},
            ),
        ),
        (
            RuntimeError("CUDA error: an illegal memory access was encountered"),
            Fault(
                "function_raised",
                500,
                "RuntimeError: CUDA error: an illegal memory access was encountered",
                {"type": "RuntimeError", "reason": "device_lost"},
                must_exit=True,
            ),
        ),
    ],
    ids=lambda value: type(value).__name__,
)
def test_faults(error: BaseException, expected: Fault) -> None:
    assert failures.fault_of(error) == expected


def test_an_error_without_text_still_has_one() -> None:
    assert failures.describe(Unprintable()) == "Unprintable: <its text cannot be read: RuntimeError>"


def test_what_no_frame_can_carry_is_written_out() -> None:
    assert failures.describe(ValueError("no file tea\udcff.txt")) == r"ValueError: no file tea\udcff.txt"
    fault = failures.fault_of(InvalidInput("bad \udcff", path="$.\udcff", given=object(), near={"x": "\udcff"}, at=1))
    assert fault.detail == r"bad \udcff"
    assert fault.extra == {"path": r"$.\udcff", "given": "<object>", "near": "<dict>", "at": 1}
    assert failures.fault_of(InvalidInput(5)).detail == "5"  # type: ignore[arg-type]
    wire.encode(wire.Failure(1, fault.code, fault.status, fault.detail, fault.extra, 0, 0, 0))


def test_a_long_text_is_cut() -> None:
    assert len(failures.describe(ValueError("x" * 10_000))) == failures.MAX_DETAIL_CHARS


def test_a_deadline_names_its_phase() -> None:
    assert failures.expired("queue").extra == {"phase": "queue"}
    assert failures.expired("queue").status == 504


def test_running_out_of_memory_does_not_break_the_context() -> None:
    assert not devices.is_context_broken(OutOfMemoryError("CUDA error: out of memory"))
    assert not devices.is_context_broken(ValueError("CUDA error"))


@pytest.mark.parametrize(
    ("before", "now", "leaked"),
    [
        (100, 100, False),
        (100, 599, False),
        (100, 601, True),
        (100, 50, False),
        (1000, 1000, False),
        (900, 960, True),
    ],
)
def test_memory_is_leaked_when_most_of_the_room_is_gone(before: int, now: int, leaked: bool) -> None:
    """It counts from what load took: a model that fills 90 % of the limit leaves a small room, which may be used."""
    assert has_leaked(before, now, 1100 if before == 100 else 1000) is leaked


def test_a_refusal_of_ours_is_a_sentence_without_the_name_of_its_class() -> None:
    assert failures.describe(DeployRefused("text generation takes no engine")) == "text generation takes no engine"
