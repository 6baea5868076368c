"""How servers are configured, and what their process is set to."""

from __future__ import annotations

import pytest

from magnetar.cli.servers import configured, quorums
from magnetar.config_loading import load
from magnetar.env.allocator import tune_allocator
from magnetar.model.errors import ConfigError


@pytest.mark.parametrize(
    ("bookies", "expected"), [(1, (1, 1, 1)), (2, (2, 2, 2)), (3, (3, 3, 2)), (16, (3, 3, 2))]
)
def test_quorums_of_so_many_bookies(bookies: int, expected: tuple[int, int, int]) -> None:
    ledger = load(role_defaults=quorums(bookies)).ledger
    assert (ledger.ensemble_size, ledger.write_quorum, ledger.ack_quorum) == expected


def test_settings_of_the_user_win_over_those_of_the_role(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MAGNETAR_LEDGER_ACK_QUORUM", "3")
    config = configured(None, ("ledger.add_timeout_ms=77",), {"http.port": None}, quorums(3))
    assert (config.ledger.ack_quorum, config.ledger.add_timeout_ms) == (3, 77)
    assert config.http.port == 8080


def test_a_flag_wins_over_a_pair() -> None:
    assert configured(None, ("http.port=1",), {"http.port": 2}).http.port == 2


def test_pairs_are_checked_like_any_setting() -> None:
    with pytest.raises(ConfigError, match=r"did you mean ledger\.ack_quorum"):
        configured(None, ("ledger.ack_qourum=1",), {})


def test_the_allocator_takes_the_settings() -> None:
    assert tune_allocator()
