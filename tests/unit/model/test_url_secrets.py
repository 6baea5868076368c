"""What is said of URLs has no passwords in it."""

from __future__ import annotations

import pytest

from magnetar.model.url_secrets import without_passwords


@pytest.mark.parametrize(
    ("told", "said"),
    [
        ("postgresql+psycopg2://ann:s3cr3t@db:5432/lake", "postgresql+psycopg2://ann@db:5432/lake"),
        ("https://ann:s:3/c%40r@catalog/v1", "https://ann@catalog/v1"),
        ("mysql://:pw@db/lake and pg://a:b@c/d", "mysql://@db/lake and pg://a@c/d"),
        ('{"uri":"pg://ann:pw@db/lake","w":"s3://b/x@y"}', '{"uri":"pg://ann@db/lake","w":"s3://b/x@y"}'),
        ("pg://db/lake?user=ann&password=pw&ssl=on", "pg://db/lake?user=ann&password=&ssl=on"),
        ("https://catalog/v1?accessToken=abc", "https://catalog/v1?accessToken="),
    ],
)  # fmt: skip
def test_passwords_are_left_out(told: str, said: str) -> None:
    assert without_passwords(told) == said
    assert without_passwords(said) == said


@pytest.mark.parametrize(
    "url",
    [
        "sqlite:////data/tables/a:b@c/catalog.db",
        "https://catalog:8181/v1/x@y",
        "https://ann@catalog/v1?warehouse=w",
        "s3://bucket/path@2026:01",
        "pulsar://[::1]:6650,host:6651",
    ],
)
def test_what_has_none_stays(url: str) -> None:
    assert without_passwords(url) == url
