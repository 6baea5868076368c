"""``magnetar config``: every setting there is, and how to give it."""

from __future__ import annotations

import json
import os
from pathlib import Path

import click

from magnetar.cli.output import json_option, print_json, print_table
from magnetar.cli.paths import GivenPath
from magnetar.config import KEPT_FOR_EVER, Config, keeps_everything
from magnetar.config_loading import Setting, load, settings, unsafe_settings
from magnetar.speedups import IN_USE


@click.command()
@click.option("--config", "file", type=GivenPath(), help="A TOML file to apply.")
@click.option("--toml", "as_toml", is_flag=True, help="Print a TOML file with every setting.")
@json_option
def config(file: Path | None, as_toml: bool, as_json: bool) -> None:
    """List every setting: value, unit, default, meaning.

    Settings come from, later ones winning: the defaults, a TOML file (--config of the servers),
    the environment, flags (--set NAME=VALUE of the servers).

    \b
    Examples:
      magnetar config
      magnetar config --toml > magnetar.toml
      magnetar config --config magnetar.toml          (check a file, see what it makes)
      MAGNETAR_LEDGER_ACK_QUORUM=2 magnetar standalone --bookies 3
      magnetar standalone --set bookie.journal.group_wait_us=500
    """
    effective = load(file, os.environ)
    found = settings()
    if as_json:
        print_json([_as_json(setting, effective) for setting in found])
    elif as_toml:
        click.echo(_toml(found, effective), nl=False)
    else:
        columns = ("setting", "value", "unit", "default", "meaning")
        rows = [
            (s.name, _shown(_value(effective, s)), s.unit, _shown(s.default), s.meaning)
            for s in found
        ]
        print_table(columns, rows)
        click.echo(f"inner loops: {IN_USE}", err=True)
        for warning in unsafe_settings(effective):
            click.echo(f"warning: {warning}", err=True)
        if keeps_everything(effective.ledger):
            click.echo(f"note: {KEPT_FOR_EVER}", err=True)


def _value(config: Config, setting: Setting) -> object:
    value: object = config
    for part in setting.path:
        value = getattr(value, part)
    return value


def _shown(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, tuple):
        return ", ".join(map(str, value))
    return str(value)


def _as_json(setting: Setting, config: Config) -> dict[str, object]:
    value, default = _value(config, setting), setting.default
    plain = isinstance(value, bool | int)
    return {
        "name": setting.name,
        "variable": setting.variable,
        "value": value if plain else _shown(value),
        "default": default if plain else _shown(default),
        "unit": setting.unit,
        "accepted": setting.accepted,
        "meaning": setting.meaning,
    }


def _toml(found: list[Setting], config: Config) -> str:
    """A file that ``load`` reads back to the same configuration."""
    lines: list[str] = []
    sections = dict.fromkeys(setting.path[:-1] for setting in found)
    for section in sections:
        if section:
            lines += ["", f"[{'.'.join(section)}]"]
        for setting in found:
            if setting.path[:-1] == section:
                value = _toml_value(_value(config, setting))
                lines += [f"# {setting.meaning}; accepted: {setting.accepted}"]
                lines += [f"{setting.path[-1]} = {value}"]
    return "\n".join(lines).lstrip("\n") + "\n"


def _toml_value(value: object) -> str:
    if isinstance(value, bool | int):
        return _shown(value)
    if isinstance(value, tuple):
        return json.dumps([str(part) for part in value])
    return json.dumps(str(value))
