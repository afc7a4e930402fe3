"""Signatures of webhooks: the scheme's own example, rotation, age, tampering."""

from __future__ import annotations

import time

import pytest

from samovar.webhooks import BadSignature, sign, verify

SECRET, OTHER = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", "whsec_AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"
BODY = b'{"test": 2432232314}'


def test_the_published_example() -> None:
    headers = sign([SECRET], "msg_p5jXN8AQM9LWM0D4loKWxJek", 1614265330, BODY)
    assert headers["webhook-signature"] == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="


def now_s() -> int:
    """Return unix seconds."""
    return int(time.time())


def test_a_good_one_is_the_event_whatever_the_case_of_headers() -> None:
    headers = {name.title(): value for name, value in sign([SECRET], "e", now_s(), BODY).items()}
    assert verify(BODY, headers, SECRET) == {"test": 2432232314}


def test_both_secrets_hold_while_they_overlap() -> None:
    headers = sign([OTHER, SECRET], "e", now_s(), BODY)
    assert verify(BODY, headers, SECRET) == verify(BODY, headers, OTHER)


@pytest.mark.parametrize("change", ["body", "id", "timestamp", "secret", "signature", "missing", "no number"])
def test_anything_else_is_refused(change: str) -> None:
    headers, body, secret = sign([SECRET], "e", now_s(), BODY), BODY, SECRET
    if change == "body":
        body += b" "
    elif change == "id":
        headers["webhook-id"] = "f"
    elif change == "timestamp":
        headers["webhook-timestamp"] = str(now_s() + 1)
    elif change == "secret":
        secret = OTHER
    elif change == "signature":
        headers["webhook-signature"] = "v1,AAAA v2,\u00e9"
    elif change == "missing":
        del headers["webhook-id"]
    else:
        headers["webhook-timestamp"] = "\u0663"
    with pytest.raises(BadSignature):
        verify(body, headers, secret)


@pytest.mark.parametrize("age_s", [-400, 400])
def test_an_old_or_early_one_is_refused_unless_tolerated(age_s: int) -> None:
    headers = sign([SECRET], "e", now_s() - age_s, BODY)
    with pytest.raises(BadSignature):
        verify(BODY, headers, SECRET)
    assert verify(BODY, headers, SECRET, tolerance_s=1000)


def test_a_secret_of_another_form_is_the_callers_mistake() -> None:
    with pytest.raises(ValueError, match="whsec_"):
        verify(BODY, sign([SECRET], "e", now_s(), BODY), "nonsense!")
