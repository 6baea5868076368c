"""How the settings of ``config.py`` get their values, and how they are listed.

Order, later ones win: built-in defaults, defaults of the role (``standalone`` with several
bookies has other quorums), a TOML file, environment variables
(``MAGNETAR_<SECTION>_<FIELD>``), flags. Everything is validated here, once, before any part is
built: a ``ConfigError`` names the setting, the value, where it came from and what is accepted.
"""

from __future__ import annotations

import difflib
import os
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import MISSING, dataclass, fields, is_dataclass
from ipaddress import ip_address
from pathlib import Path
from typing import TypeAlias, TypeVar, get_type_hints

from magnetar.config import Config, check_ledger
from magnetar.model.errors import ConfigError
from magnetar.model.host_names import is_host_name

ENVIRONMENT_PREFIX = "MAGNETAR_"
PORT_MAX = 65_535
BYTE_UNITS = {"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}
TIME_UNITS = {"ms": 1, "min": 60_000, "h": 3_600_000, "d": 86_400_000, "s": 1000}
"""``s`` is last: other units end with it."""
FRAME_SLACK_BYTES = 10 << 10
"""What an entry needs beside the largest message: metadata, header, digest."""
WHOLE = re.compile(r"-?[0-9]{1,40}")
"""Python refuses to read numbers of thousands of digits by another error."""

NOT_SETTINGS = frozenset(
    f"{ENVIRONMENT_PREFIX}{name}"
    for name in (
        "CATALOG", "DEBUG", "SERVICE_URL", "SPEEDUPS", "TOKEN", "TOKEN_FILE", "TRUST", "URL",
        "USERS_FILE", "WAREHOUSE",
    )
)  # fmt: skip
"""Variables that commands and jobs read themselves."""
ALIKE = 0.8
"""How alike names are of which one is meant to be the other (``difflib``); ours apart are less."""
SERVICE_LINK = re.compile(
    r".*_SERVICE_(HOST|PORT(_[A-Z0-9_]+)?)|.*_PORT_[0-9]+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?"
)
LINKED_PORT = re.compile(r"(tcp|udp|sctp)://\S+:[0-9]+")
"""Kubernetes tells every container of each service, so: of one named magnetar-broker
``MAGNETAR_BROKER_PORT=tcp://10.0.0.1:6650``, besides a dozen that end as ``SERVICE_LINK`` says."""

METADATA_SCHEMES = ("zk://", "sqlite:", "unix:")
"""``unix:PATH`` is for brokers that another process of this machine has started."""

SettingPath: TypeAlias = tuple[str, ...]
SettingValue: TypeAlias = bool | int | str | Path | tuple[Path, ...]


EXAMPLES = {"bytes": " (or as 64KiB, 16MiB, 1GiB)", "ms": " (or as 500ms, 90s, 10min, 12h, 7d)"}
UNITS = {"bytes": BYTE_UNITS, "ms": TIME_UNITS}


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting as people see it."""

    path: SettingPath
    kind: str  # "bool", "int", "str", "path" or "paths"
    default: SettingValue
    meaning: str
    least: int | None
    most: int | None = None
    choices: tuple[str, ...] = ()
    """Of a text; empty: any will do."""

    @property
    def name(self) -> str:
        """``bookie.journal.sync``, as in the TOML file."""
        return ".".join(self.path)

    @property
    def variable(self) -> str:
        """``MAGNETAR_BOOKIE_JOURNAL_SYNC``."""
        return ENVIRONMENT_PREFIX + "_".join(self.path).upper()

    @property
    def unit(self) -> str:
        """Read off the name: ``_ms``, ``_us``, ``bytes``; empty for counts and the rest."""
        if self.kind != "int":
            return ""
        words = self.path[-1].split("_")
        return next((unit for unit in ("ms", "us", "bytes") if unit in words), "")

    @property
    def accepted(self) -> str:
        """What values it takes, in words."""
        if is_port(self.path):
            return f"a port, {self.least or 0} to {PORT_MAX}"
        if is_host(self.path):
            return "a host's name, or an address"
        if self.choices:
            return ", ".join(self.choices)
        if self.kind == "int":
            bound = f" of at least {self.least}" if self.least is not None else ""
            bound += f" and at most {self.most}" if self.most is not None else ""
            suffix = EXAMPLES.get(self.unit, "")
            return f"a whole number{bound}{suffix}"
        kinds = {
            "bool": "true or false",
            "str": "text",
            "path": "a path",
            "paths": "a list of paths",
        }
        return kinds[self.kind]


def settings() -> list[Setting]:
    """Every setting there is, in the order of the declarations."""
    return list(_settings_of(Config, ()))


def _settings_of(section: type, above: SettingPath) -> Iterator[Setting]:
    hints = get_type_hints(section)
    for item in fields(section):
        path, hint = (*above, item.name), hints[item.name]
        if is_dataclass(hint):
            assert isinstance(hint, type)
            yield from _settings_of(hint, path)
        else:
            kind = {bool: "bool", int: "int", str: "str", Path: "path"}.get(hint, "paths")
            meaning, least = item.metadata["meaning"], item.metadata.get("least")
            assert item.default is not MISSING, f"{path} needs a default"
            most = item.metadata.get("most")
            choices = item.metadata.get("choices", ())
            yield Setting(path, kind, item.default, meaning, least, most, choices)


def is_port(path: SettingPath) -> bool:
    return path[-1] in ("port", "tls_port")


def is_host(path: SettingPath) -> bool:
    return path[-1] in ("host", "advertised_host")


# -- loading ----------------------------------------------------------------------------------


def load(
    file: Path | None = None,
    environment: Mapping[str, str] | None = None,
    flags: Mapping[str, object] | None = None,
    role_defaults: Mapping[str, object] | None = None,
) -> Config:
    """The configuration of this process, validated.

    Later ones win: built-in defaults, ``role_defaults``, the TOML ``file``, ``environment``
    variables, ``flags``. ``flags`` and ``role_defaults`` are keyed by ``Setting.name``; flags
    that are None were not given. Raises ``ConfigError``.
    """
    known = {setting.name: setting for setting in settings()}
    values: dict[str, SettingValue] = {}
    layers = (
        ("default of this role", role_defaults or {}),
        (str(file), _file_values(file, known) if file is not None else {}),
        ("environment", _environment_values(environment or {}, known)),
        ("flag", {name: value for name, value in (flags or {}).items() if value is not None}),
    )
    for source, layer in layers:
        for name, raw in layer.items():
            if name not in known:
                raise ConfigError(f"{source}: there is no setting {name!r}{_similar(name, known)}")
            values[name] = _parsed(known[name], raw, source)
    config = _build(Config, (), values)
    _check_together(config)
    return config


def _file_values(file: Path, known: Mapping[str, Setting]) -> dict[str, object]:
    try:
        table = tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"cannot read the configuration file {file}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file} is not valid TOML: {error}") from error
    return dict(_flattened(table, "", known))


def _flattened(
    table: Mapping[str, object], above: str, known: Mapping[str, Setting]
) -> Iterator[tuple[str, object]]:
    for key, value in table.items():
        name = f"{above}{key}"
        if isinstance(value, dict) and name not in known:
            yield from _flattened(value, f"{name}.", known)
        else:
            yield name, value


def _environment_values(
    environment: Mapping[str, str], known: Mapping[str, Setting]
) -> dict[str, object]:
    """Of the variables that are meant for us. A misspelt one is an error: ignored, it would
    surprise."""
    by_variable = {setting.variable: setting.name for setting in known.values()}
    sections = {f"{ENVIRONMENT_PREFIX}{s.path[0].upper()}_" for s in known.values() if s.path[1:]}
    values: dict[str, object] = {}
    for variable, value in environment.items():
        if not variable.startswith(ENVIRONMENT_PREFIX) or _is_service_link(variable, value):
            continue
        if variable in by_variable:
            values[by_variable[variable]] = value
        elif variable not in NOT_SETTINGS and (
            any(variable.startswith(section) for section in sections)
            or _is_misspelt(variable, by_variable)
        ):
            similar = _similar(variable, by_variable)
            raise ConfigError(f"environment: there is no setting {variable}{similar}")
    return values


def _is_service_link(variable: str, value: str) -> bool:
    port = variable.endswith("_PORT") and LINKED_PORT.fullmatch(value)
    return bool(port or SERVICE_LINK.fullmatch(variable))


def _is_misspelt(variable: str, known: Iterable[str]) -> bool:
    """Whether a variable of no section is nearly one of ``known``, or the end of one."""
    name = variable.removeprefix(ENVIRONMENT_PREFIX)
    ours = [each.removeprefix(ENVIRONMENT_PREFIX) for each in known]
    return any(each.endswith(f"_{name}") for each in ours) or bool(
        difflib.get_close_matches(name, ours, n=1, cutoff=ALIKE)
    )


def _similar(name: str, known: Iterable[str]) -> str:
    matches = difflib.get_close_matches(name, list(known), n=1)
    return f"; did you mean {matches[0]}?" if matches else "; `magnetar config` lists them all"


def _parsed(setting: Setting, raw: object, source: str) -> SettingValue:
    """``raw`` (a TOML value, or text) as the setting's type, within its bounds."""
    value = _converted(setting, raw)
    if is_port(setting.path) and not (
        isinstance(value, int) and (setting.least or 0) <= value <= PORT_MAX
    ):
        value = None
    if is_host(setting.path) and value and not is_host_name(str(value)):
        value = None
    if setting.choices and value not in setting.choices:
        value = None
    if setting.least is not None and isinstance(value, int) and value < setting.least:
        value = None
    if setting.most is not None and isinstance(value, int) and value > setting.most:
        value = None
    if value is None:
        raise ConfigError(
            f"{setting.name} = {raw!r} ({source}) cannot be used; accepted: {setting.accepted}"
        )
    return value


def _converted(setting: Setting, raw: object) -> SettingValue | None:
    """None when ``raw`` is not of the setting's kind."""
    match setting.kind:
        case "bool":
            words = {"true": True, "1": True, "on": True, "false": False, "0": False, "off": False}
            return raw if isinstance(raw, bool) else words.get(str(raw).lower())
        case "int":
            return whole_number(raw, UNITS.get(setting.unit, {}))
        case "str":
            return raw if isinstance(raw, str) else None
        case "path":
            return Path(raw) if isinstance(raw, str | Path) and str(raw) else None
        case _:
            return _paths(raw)


def whole_number(raw: object, units: Mapping[str, int]) -> int | None:
    """A number, perhaps with one of ``units``; None if it is none."""
    if isinstance(raw, bool):
        return None
    if isinstance(raw, int):
        return raw
    text, factor = str(raw).strip().replace("_", ""), 1
    for suffix, size in units.items():
        if text.lower().endswith(suffix.lower()):
            text, factor = text[: -len(suffix)].strip(), size
            break
    return int(text) * factor if WHOLE.fullmatch(text) else None


def _paths(raw: object) -> tuple[Path, ...] | None:
    if isinstance(raw, str):
        return tuple(Path(part) for part in raw.split(os.pathsep) if part)
    if isinstance(raw, list | tuple) and all(isinstance(part, str | Path) for part in raw):
        return tuple(Path(part) for part in raw)
    return None


T = TypeVar("T")


def _build(section: type[T], above: SettingPath, values: Mapping[str, SettingValue]) -> T:
    hints = get_type_hints(section)
    arguments: dict[str, object] = {}
    for item in fields(section):  # type: ignore[arg-type]
        path = (*above, item.name)
        if is_dataclass(hints[item.name]):
            arguments[item.name] = _build(hints[item.name], path, values)
        elif ".".join(path) in values:
            arguments[item.name] = values[".".join(path)]
    return section(**arguments)


def _check_together(config: Config) -> None:
    """The rules that bind several settings."""
    bookie, journal = config.bookie, config.bookie.journal
    check_ledger(config.ledger)
    if config.broker.message_bytes_max + FRAME_SLACK_BYTES > bookie.entry_bytes_max:
        raise ConfigError(
            f"broker.message_bytes_max = {config.broker.message_bytes_max} does not fit into "
            f"bookie.entry_bytes_max = {bookie.entry_bytes_max}; accepted: at least "
            f"{FRAME_SLACK_BYTES} bytes between them"
        )
    if config.broker.message_bytes_max + FRAME_SLACK_BYTES > config.ledger.payload_bytes_max:
        raise ConfigError(
            f"broker.message_bytes_max = {config.broker.message_bytes_max} does not fit into "
            f"ledger.payload_bytes_max = {config.ledger.payload_bytes_max}: clients would be told "
            "that they may send what no ledger takes, and try for ever; accepted: at least "
            f"{FRAME_SLACK_BYTES} bytes between them"
        )
    if config.broker.deduplication and config.broker.engine == "partition":
        raise ConfigError(
            "broker.deduplication = true and broker.engine = 'partition' do not go together: "
            "deduplication is served on ledgers only, and producers would be refused; set one of "
            "them for single namespaces"
        )
    if bookie.entry_bytes_max + 4096 > journal.file_bytes:
        raise ConfigError(
            f"bookie.journal.file_bytes = {journal.file_bytes} cannot hold one entry of "
            f"bookie.entry_bytes_max = {bookie.entry_bytes_max}; accepted: 4096 bytes more"
        )
    _check_tls(config)
    url = config.metadata.url
    if url and (url in METADATA_SCHEMES or not url.startswith(METADATA_SCHEMES)):
        raise ConfigError(
            f"metadata.url = {url!r} cannot be used; accepted: "
            "zk://HOST:PORT[,HOST:PORT]/ROOT, sqlite:PATH, or empty for the data directory"
        )


def _check_tls(config: Config) -> None:
    tls = config.tls
    ports = config.broker.tls_port, config.http.tls_port, config.kafka.tls_port
    if max(ports) >= 0 and not (tls.certificate_file and tls.key_file):
        raise ConfigError(
            "broker.tls_port, http.tls_port or kafka.tls_port is set, and there is nothing to show "
            "there; set tls.certificate_file and tls.key_file"
        )
    if tls.client_certificates != "none" and not tls.trusted_file:
        raise ConfigError(
            f"tls.client_certificates = {tls.client_certificates!r} needs tls.trusted_file, which "
            "says whose certificates count"
        )


def unsafe_settings(config: Config) -> list[str]:
    """One sentence for each setting that gives up durability or exposes the platform."""
    found = []
    if not config.bookie.journal.sync:
        found.append("bookie.journal.sync is off: a power loss takes acknowledged messages with it")
    ledger = config.ledger
    if ledger.write_quorum > 1 and ledger.ack_quorum == 1:
        found.append(
            f"ledger.ack_quorum is 1 of {ledger.write_quorum}: losing one bookie can lose "
            "acknowledged messages"
        )
    plain = [("broker", config.broker.host), ("http", config.http.host)]
    if config.kafka.port >= 0:
        plain.append(("kafka", config.kafka.host))
    by_tls = [("tls", config.tls.host)] if config.tls.host else []
    for name, host in (*plain, *by_tls):
        if is_loopback(host):
            continue
        if not config.security.authentication:
            found.append(
                f"{name}.host is {host}: anyone who reaches this machine may use it, since "
                "security.authentication is off"
            )
        elif name != "tls":
            found.append(
                f"{name}.host is {host}: tokens and passwords are sent there in the clear; let "
                "others reach only the TLS port (tls.host)"
            )
    return found


def is_loopback(host: str) -> bool:
    """Whether nobody outside of this machine reaches what listens there."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
