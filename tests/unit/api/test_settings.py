"""Settings: what can be served, and how ``serve`` hands it over."""

from __future__ import annotations

import pytest

from api.settings import VARIABLE, Settings, from_environment
from domino_tune.requests.service import is_loopback
from simulator.errors import InputError


def test_they_come_back_from_the_environment() -> None:
    settings = Settings(database_url="sqlite:///a.db", workers=3, quick_s=5)
    assert from_environment({VARIABLE: settings.to_json()}) == settings


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "{}", '{"database_url": 1}', '{"database_url": "x", "worker": 1}',
     '{"database_url": "x", "workers": true}', '{"database_url": "x", "burst": 0}',
     '{"database_url": "x", "quick_s": -1}', '{"database_url": "x", "notice_s": NaN}'],
)  # fmt: skip
def test_bad_ones_are_refused(text: str) -> None:
    with pytest.raises(InputError):
        from_environment({VARIABLE: text})


def test_none_at_all() -> None:
    with pytest.raises(InputError, match="serve"):
        from_environment({})


@pytest.mark.parametrize("address", ["0.0.0.0", "::", "192.168.1.2", "example.org", ""])
def test_other_addresses_need_tokens(address: str) -> None:
    with pytest.raises(InputError, match="tokens"):
        Settings(database_url="sqlite:///a.db", bind=address)
    assert Settings(database_url="sqlite:///a.db", bind=address, tokens_required=True).hosts == ()


def test_loopback() -> None:
    assert all(map(is_loopback, ("127.0.0.1", "127.8.8.8", "::1", "[::1]", "localhost")))
    assert "127.0.0.1" in Settings(database_url="x").hosts


def test_a_password_is_not_shown() -> None:
    assert "secret" not in repr(Settings(database_url="postgresql://u:secret@h/d"))
