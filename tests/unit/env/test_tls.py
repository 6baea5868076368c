"""TLS listeners: who gets in, who does not, and certificates that are renewed."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import ssl
import subprocess
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from magnetar.env.network.certificates import peer_name
from magnetar.env.network.connections import Connections
from magnetar.env.network.listening import bind, port_of
from magnetar.env.network.tls import TlsFiles, TlsListener, client_tls, server_tls
from magnetar.env.tasks import TaskScope, ends_role
from magnetar.model.errors import ConfigError
from tests.certificates import Authority

LONG_S = 30.0


class Echo(asyncio.Protocol):
    """Answers with the name in the client's certificate."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.transport.write(f"{peer_name(self.transport)}: {data.decode()}".encode())


class Heard(Connections):
    """Keeps what is said of those who are refused."""

    def __init__(self) -> None:
        super().__init__()
        self.why: list[str] = []

    def say_refused(self, peer: str, why: str) -> None:
        self.why.append(why)


class Site:
    def __init__(self, port: int, heard: Heard) -> None:
        self.port, self.heard = port, heard

    async def say(self, context: ssl.SSLContext | None, text: bytes = b"hello") -> str:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port, ssl=context)
        try:
            writer.write(text)
            return (await reader.read(100)).decode()
        finally:
            writer.close()

    async def refused(self, count: int) -> str:
        """Why the last one was, when there are that many."""
        async with asyncio.timeout(LONG_S):
            while len(self.heard.why) < count:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        return self.heard.why[-1]


def serve(
    tls: TlsFiles,
    scenario: Callable[[Site], Awaitable[None]],
    handshake_s: float = LONG_S,
    handshakes_max: int = 10,
) -> None:
    async def main() -> None:
        def failed(error: BaseException) -> None:
            raise AssertionError(error)

        scope, heard = TaskScope("test", ends_role(failed)), Heard()
        bound = bind("127.0.0.1", 0, "port")
        listener = TlsListener(bound, Echo, tls, scope, heard, handshake_s, handshakes_max)
        listener.start()
        try:
            await scenario(Site(port_of(bound), heard))
        finally:
            listener.close()
            await scope.close()

    asyncio.run(main())


def test_a_client_that_trusts_the_authority_is_served(tmp_path: Path) -> None:
    authority, other = Authority(tmp_path), Authority(tmp_path, "other")

    async def scenario(site: Site) -> None:
        assert await site.say(client_tls(authority.trusted).context()) == "None: hello"
        with pytest.raises(ssl.SSLCertVerificationError):
            await site.say(client_tls(other.trusted).context())
        assert "handshake failed" in await site.refused(1)
        old = client_tls(authority.trusted).context()
        old.minimum_version = ssl.TLSVersion.TLSv1
        old.maximum_version = ssl.TLSVersion.TLSv1_1
        with pytest.raises((ssl.SSLError, ConnectionError)):
            await site.say(old)
        await site.refused(2)

    serve(server_tls(*authority.issue("server")), scenario)


def test_certificates_are_verified_alike_with_every_python(tmp_path: Path) -> None:
    """An interpreter that is changed cuts no brokers from each other."""
    bare = Authority(tmp_path, bare=True)
    server = bare.issue("server")

    async def scenario(site: Site) -> None:
        ours = client_tls(bare.trusted).context()
        assert await site.say(ours) == "None: hello"
        assert await site.say(client_tls(server.certificate).context()) == "None: hello"
        ours.verify_flags |= ssl.VERIFY_X509_STRICT
        with pytest.raises(ssl.SSLCertVerificationError):
            await site.say(ours)

    serve(server_tls(*server), scenario)


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not installed")
def test_certificates_that_the_documents_make_fit_strict_clients(tmp_path: Path) -> None:
    """``ssl.create_default_context`` is strict from Python 3.13 on."""
    said = (Path(__file__).parents[3] / "docs" / "security.md").read_text()
    lines = said[
        said.index("    openssl req -x509") : said.index("    magnetar standalone ... --set")
    ]
    run = subprocess.run(["bash", "-ec", lines], cwd=tmp_path, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr

    async def scenario(site: Site) -> None:
        strict = ssl.create_default_context(cafile=str(tmp_path / "ca.crt"))
        strict.verify_flags |= ssl.VERIFY_X509_STRICT
        assert await site.say(strict) == "None: hello"

    serve(server_tls(tmp_path / "server.crt", tmp_path / "server.key"), scenario)


def test_a_plain_client_is_refused_and_it_is_said_why(tmp_path: Path) -> None:
    async def scenario(site: Site) -> None:
        for count, text in enumerate(
            (b"\0\0\0\x10\0\0\0\x0cabcdefgh" * 4, b"GET / HTTP/1.1\r\n\r\n")
        ):
            await site.say(None, text)
            assert "does not speak TLS" in await site.refused(count + 1)

    serve(server_tls(*Authority(tmp_path).issue("server")), scenario)


def test_clients_may_show_certificates_or_must(tmp_path: Path) -> None:
    authority, other = Authority(tmp_path), Authority(tmp_path, "other")
    server = authority.issue("server")
    shows = client_tls(authority.trusted, *authority.issue("alice"))
    forged = client_tls(authority.trusted, *other.issue("root"))

    async def optional(site: Site) -> None:
        assert await site.say(shows.context()) == "alice: hello"
        assert await site.say(client_tls(authority.trusted).context()) == "None: hello"
        await refused(site, forged)

    async def required(site: Site) -> None:
        assert await site.say(shows.context()) == "alice: hello"
        await refused(site, client_tls(authority.trusted))

    async def refused(site: Site, shown: TlsFiles) -> None:
        with contextlib.suppress(ssl.SSLError, ConnectionError):
            assert await site.say(shown.context()) == ""
        assert await site.refused(1)

    serve(server_tls(*server, authority.trusted, "optional"), optional)
    serve(server_tls(*server, authority.trusted, "required"), required)


def test_certificates_that_are_renewed_count_without_a_restart(tmp_path: Path) -> None:
    old, new = Authority(tmp_path, "old"), Authority(tmp_path, "new")
    server = old.issue("server")

    async def scenario(site: Site) -> None:
        assert await site.say(client_tls(old.trusted).context())
        server.certificate.write_bytes(b"half of a")
        assert await site.say(client_tls(old.trusted).context())
        new.issue("server")
        assert await site.say(client_tls(new.trusted).context())
        with pytest.raises(ssl.SSLError):
            await site.say(client_tls(old.trusted).context())

    serve(server_tls(*server), scenario)


def test_handshakes_are_bounded_in_number_and_time(tmp_path: Path) -> None:
    authority = Authority(tmp_path)

    async def number(site: Site) -> None:
        held = [await asyncio.open_connection("127.0.0.1", site.port) for _ in range(2)]
        reader, writer = await asyncio.open_connection("127.0.0.1", site.port)
        assert await reader.read(1) == b""
        assert "handshakes" in await site.refused(1)
        for _, each in (*held, (reader, writer)):
            each.close()
        await site.refused(3)
        assert await site.say(client_tls(authority.trusted).context()) == "None: hello"

    async def time(site: Site) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", site.port)
        await reader.read(1)
        assert "handshake" in await site.refused(1)
        writer.close()

    server = server_tls(*authority.issue("server"))
    serve(server, number, handshakes_max=2)
    serve(server, time, handshake_s=0.2)


def test_files_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    one, two = authority.issue("one"), authority.issue("two")
    for files in (
        (one.certificate, two.key),
        (tmp_path / "none", one.key),
        (one.key, one.key),
    ):
        with pytest.raises(ConfigError, match="PEM"):
            server_tls(*files)
    with pytest.raises(ConfigError):
        client_tls(one.key)
