"""The rules of the house. Each takes the modules and returns its faults, a line each."""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence
from typing import TypeAlias

from tests.tidy.source_tree import Module

Rule: TypeAlias = Callable[[Sequence[Module]], list[str]]

SETTINGS = {"config", "metrics", "logs"}

MAY_IMPORT: dict[str, set[str]] = {
    "": set(),
    "model": set(),
    "speedups": {"_speedups"},  # and nobody else: it is the one place that chooses
    "wire": {"model", "speedups"},
    "config": {"model"},
    "config_loading": {"model", "config"},
    "metrics": set(),
    "logs": {"config"},
    "env": {"model", "speedups"} | SETTINGS,
    "bookie": {"model", "speedups", "wire", "env"} | SETTINGS,
    "ledger": {"model", "speedups", "wire", "env"} | SETTINGS,
    "repair": {"model", "wire", "env", "ledger"} | SETTINGS,
    "log": {"model", "wire", "env", "ledger"} | SETTINGS,
    "cluster": {"model", "env"} | SETTINGS,
    "staging": {"model", "env"} | SETTINGS,
    "topics": {"model", "env", "log", "cluster", "staging"} | SETTINGS,
    "protocols": {"model", "speedups", "wire", "env", "log", "cluster", "topics"} | SETTINGS,
    "admin": {"model", "wire", "env", "cluster", "topics", "log", "ledger"}
    | SETTINGS,
    "tables": {"model"} | SETTINGS,
    "pipeline": {
        "model", "speedups", "wire", "env", "ledger", "repair", "log", "cluster", "staging",
        "tables",
    }
    | SETTINGS,
    "app": {
        "model", "wire", "env", "bookie", "ledger", "log", "cluster", "topics", "protocols",
        "admin", "staging", "repair", "tables",
    }
    | SETTINGS,
    "proving": {"model", "wire", "env", "ledger", "log", "app"} | SETTINGS,
    "cli": {
        "model", "speedups", "wire", "env", "app", "cluster", "ledger", "pipeline", "proving",
        "config_loading",
    }
    | SETTINGS,
    "__main__": {"cli"},
}  # fmt: skip
"""Package -> the other packages it may import (``tests/tidy`` is the table's guard,
ARCHITECTURE.md its text). The simulator stands beside: see ``nothing_imports_the_simulator``."""

NARROWER: dict[str, set[str]] = {
    # Only the managed engine stands on ledgers; the seam and its state know nothing of them.
    "magnetar.log.seam": {"model"},
    "magnetar.log.ack_store": {"model"},
    "magnetar.log.policy": {"model"},
    "magnetar.log.acknowledgements": {"model"},
    "magnetar.log.ack_images": {"model"},
    "magnetar.log.survivors": {"model"},
    "magnetar.log.surviving": {"model"},
}

NARROWER_PACKAGES: dict[str, set[str]] = {
    # The other engine stands on files and on its own replicas.
    "magnetar.log.partition.": {"model", "wire", "env"} | SETTINGS,
}

DECIDING: tuple[str, ...] = (
    "magnetar.app.restarts",
    "magnetar.env.collecting",
    "magnetar.bookie.storage.compaction_plan",
    "magnetar.bookie.storage.location_runs",
    "magnetar.env.files.disk_space",
    "magnetar.bookie.storage.log_usage",
    "magnetar.bookie.space.log_trouble",
    "magnetar.bookie.space.missing_ledgers",
    "magnetar.bookie.storage.read_pace",
    "magnetar.env.network.frame_budget",
    "magnetar.env.network.send_budget",
    "magnetar.env.network.silence",
    "magnetar.ledger.writing.quorum_write",
    "magnetar.ledger.recovering.recovery_plan",
    "magnetar.ledger.placing.placement",
    "magnetar.ledger.placing.spread",
    "magnetar.ledger.writing.add_deadlines",
    "magnetar.ledger.placing.quarantine",
    "magnetar.ledger.mending.missing_entries",
    "magnetar.ledger.reading.hedging",
    "magnetar.ledger.reading.read_order",
    "magnetar.log.ack_images",
    "magnetar.log.acknowledgements",
    "magnetar.log.managed.appender_states",
    "magnetar.log.managed.chain",
    "magnetar.log.managed.cursor_format",
    "magnetar.log.managed.following",
    "magnetar.log.managed.rules",
    "magnetar.log.partition.batch_header",
    "magnetar.log.partition.compaction",
    "magnetar.log.partition.doom",
    "magnetar.log.partition.replication.assignment",
    "magnetar.log.partition.replication.election",
    "magnetar.log.partition.replication.follower",
    "magnetar.log.partition.index_files",
    "magnetar.log.partition.replication.isr_states",
    "magnetar.log.partition.replication.leader",
    "magnetar.log.partition.leader_epochs",
    "magnetar.log.partition.limits",
    "magnetar.log.partition.markers",
    "magnetar.log.partition.replication.partition_state",
    "magnetar.log.partition.producer_states",
    "magnetar.log.partition.replication.replica",
    "magnetar.log.partition.retention",
    "magnetar.log.partition.serving.batch_places",
    "magnetar.log.partition.serving.envelopes",
    "magnetar.log.partition.serving.partition_names",
    "magnetar.log.policy",
    "magnetar.log.sequences",
    "magnetar.log.surviving",
    "magnetar.log.survivors",
    "magnetar.proving.counting",
    "magnetar.proving.pages",
    "magnetar.proving.pictures",
    "magnetar.proving.results",
    "magnetar.proving.scenarios",
    "magnetar.repair.copies",
    "magnetar.repair.insight.faults",
    "magnetar.repair.insight.forecast",
    "magnetar.repair.insight.moves",
    "magnetar.repair.lost_bookies",
    "magnetar.repair.replacing",
    "magnetar.repair.silences",
    "magnetar.repair.throttle",
    "magnetar.repair.turns",
    "magnetar.staging.commit_rules",
    "magnetar.staging.grants",
    "magnetar.staging.marks",
    "magnetar.staging.records",
    "magnetar.topics.publishing.access",
    "magnetar.topics.following.ack_sending",
    "magnetar.topics.consuming.binding_rules",
    "magnetar.topics.dispatch.delayed",
    "magnetar.topics.dispatch.key_policy",
    "magnetar.topics.dispatch.key_ranges",
    "magnetar.topics.dispatch.key_waiting",
    "magnetar.topics.dispatch.keyed",
    "magnetar.topics.dispatch.seats",
    "magnetar.topics.dispatch.shared",
    "magnetar.topics.dispatch.single_active",
    "magnetar.topics.entry_format",
    "magnetar.topics.idle_order",
    "magnetar.topics.policy",
    "magnetar.topics.positions",
    "magnetar.topics.quotas",
    "magnetar.topics.dispatch.redelivery",
    "magnetar.topics.rate_limits",
    "magnetar.topics.publishing.sequence_marks",
    "magnetar.wire.pulsar.plausible",
    "magnetar.wire.crossing.kafka_to_pulsar",
    "magnetar.wire.crossing.pulsar_to_kafka",
    "magnetar.protocols.entry_work",
    "magnetar.protocols.kafka.consumers.assignors",
    "magnetar.protocols.kafka.consumers.consumer_group",
    "magnetar.protocols.kafka.consumers.consumer_records",
    "magnetar.protocols.kafka.consumers.id_partitions",
    "magnetar.protocols.kafka.consumers.reconciliation",
    "magnetar.cluster.topic_patterns",
    "magnetar.protocols.kafka.coordination.classic_records",
    "magnetar.protocols.kafka.coordination.coordinator_state",
    "magnetar.protocols.kafka.coordination.group",
    "magnetar.protocols.kafka.coordination.group_offsets",
    "magnetar.protocols.kafka.coordination.group_states",
    "magnetar.protocols.kafka.coordination.subscriptions",
    "magnetar.protocols.kafka.names",
    "magnetar.protocols.kafka.topic_settings",
    "magnetar.protocols.kafka.partitions.producer_states",
    "magnetar.protocols.kafka.shares.share_group",
    "magnetar.protocols.kafka.shares.share_partition",
    "magnetar.protocols.kafka.shares.share_records",
    "magnetar.protocols.kafka.shares.share_sessions",
    "magnetar.protocols.kafka.shares.simple_assignor",
    "magnetar.protocols.kafka.security.sasl_gate",
    "magnetar.protocols.kafka.security.sasl_states",
    "magnetar.protocols.kafka.coordination.transaction",
    "magnetar.protocols.kafka.partitions.transaction_index",
    "magnetar.protocols.kafka.coordination.transaction_states",
    "magnetar.protocols.pulsar.bounds",
    "magnetar.protocols.pulsar.clients",
    "magnetar.protocols.pulsar.message_ids",
    "magnetar.cluster.policies.backlog_quotas",
    "magnetar.cluster.policies.policies",
    "magnetar.cluster.security.permissions",
    "magnetar.cluster.security.principals",
    "magnetar.cluster.security.tokens",
    "magnetar.cluster.security.users",
    "magnetar.cluster.schemas.avro",
    "magnetar.cluster.schemas.kept",
    "magnetar.cluster.schemas.key_value",
    "magnetar.cluster.schemas.protobuf",
    "magnetar.cluster.schemas.record",
    "magnetar.cluster.schemas.resolution",
    "magnetar.cluster.schemas.rules",
    "magnetar.cluster.sharing.balance",
    "magnetar.cluster.bundles",
    "magnetar.cluster.sharing.placement",
    "magnetar.cluster.policies.policy_values",
    "magnetar.cluster.policies.read_rules",
    "magnetar.cluster.steering",
    "magnetar.cluster.brokers.reports",
    "magnetar.cluster.topic_name",
    "magnetar.pipeline.options.delivery",
    "magnetar.pipeline.losses",
    "magnetar.pipeline.places",
    "magnetar.pipeline.options.bounds",
    "magnetar.pipeline.jobs.sequences",
    "magnetar.pipeline.tables.small_files",
    "magnetar.pipeline.tables.taking_rules",
    "magnetar.tables.parts",
    "magnetar.pipeline.columns.conditions",
    "magnetar.pipeline.planning.even_splits",
    "magnetar.pipeline.options.filter_text",
    "magnetar.pipeline.planning.narrowing",
    "magnetar.pipeline.columns.row_filter",
    "magnetar.pipeline.option_values",
    "magnetar.pipeline.options.source_options",
    "magnetar.pipeline.planning.plans",
    "magnetar.pipeline.options.selection",
    "magnetar.pipeline.planning.splits",
    "magnetar.pipeline.planning.storage_splits",
    "magnetar.pipeline.typed.avro_arrow",
    "magnetar.pipeline.typed.avro_defaults",
    "magnetar.pipeline.typed.avro_encoding",
    "magnetar.pipeline.typed.avro_walk",
    "magnetar.pipeline.typed.blocks",
    "magnetar.pipeline.typed.faults",
    "magnetar.pipeline.typed.fitting",
    "magnetar.pipeline.typed.json_encoding",
    "magnetar.pipeline.typed.json_values",
    "magnetar.pipeline.typed.options",
    "magnetar.pipeline.typed.plain_values",
    "magnetar.pipeline.typed.ragged",
    "magnetar.pipeline.typed.spark_types",
    "magnetar.pipeline.typed.value_decoding",
    "magnetar.pipeline.columns.entry_columns",
    "magnetar.pipeline.columns.message_rows",
    "magnetar.pipeline.topic_names",
)
"""Modules that decide: no clock, no randomness, no I/O, no event loop, no logging."""

LAYERS: dict[str, tuple[tuple[str, ...], ...]] = {
    "magnetar.topics": (
        (
            "entry_format",
            "followers",
            "idle_order",
            "load_queue",
            "name_lists",
            "parts",
            "positions",
            "rate_limits",
            "reading_on",
            "throttle",
            "traffic",
        ),
        ("dispatch",),
        ("consuming", "policy", "publishing"),
        ("quotas", "subscribable"),
        ("topic",),
        ("opening", "policies_in_force", "quota_keeping", "seek", "skipping", "stats", "unloading"),
        ("bindings", "compacting", "deleting", "following", "registry", "terminating"),
        ("engine_rules", "intakes", "partitioned_deletion", "rates", "steering", "upkeep"),
    ),
    "magnetar.topics.consuming": (
        ("backlog", "binding_rules", "bound", "feed"),
        ("consumer", "delays", "transaction_view"),
        ("acknowledging", "dispatcher"),
        ("subscription",),
        ("giving_back",),
    ),
    "magnetar.protocols.pulsar": (
        (
            "attached",
            "identity",
            "liveness",
            "owner_line",
            "rate_hold",
            "requests",
            "staged_writes",
            "stored_ledgers",
            "topic_list_watch",
        ),
        (
            "bounds",
            "clients",
            "compact_format",
            "entry_format",
            "key_shared",
            "leaving",
            "merging",
            "message_ids",
            "services",
        ),
        ("owner_links", "session"),
        (
            "consumer_stats",
            "deliveries",
            "log_compactions",
            "log_extents",
            "receipts",
        ),
        ("handlers",),
        ("server",),
    ),
    "magnetar.protocols.kafka": (
        (
            "consumers",
            "crossing",
            "entry_format",
            "group_settings",
            "known_places",
            "last_epochs",
            "lines",
            "lookups",
            "names",
            "partitions",
            "peers",
            "security",
            "shares",
            "topic_ids",
            "topic_settings",
            "traffic",
            "unread",
        ),
        ("services",),
        ("session",),
        ("coordination",),
        ("handlers",),
        ("server",),
    ),
    "magnetar.protocols.kafka.coordination": (
        ("classic_records", "group_offsets", "group_states", "transaction_states"),
        ("group", "transaction"),
        ("coordinator_state", "subscriptions"),
        ("live_groups", "offset_commits", "offset_log", "topic_shapes"),
        ("coordinator", "group_times"),
        ("consumer_groups", "share_states", "transactions"),
        ("share_groups",),
    ),
    "magnetar.cluster": (
        ("topic_name", "topic_patterns"),
        ("bundles", "stored"),
        ("brokers", "namespaces", "partitioned_topics"),
        ("ownership", "policies"),
        ("schemas", "security", "sharing", "steering"),
        ("control_plane",),
    ),
    "magnetar_sim": (
        ("world",),
        ("cluster", "machines", "replicas"),
        ("brokers", "repair"),
        ("kafka", "staged", "tabled"),
        ("cluster_run",),
        ("__main__",),
    ),
}
"""Crowded packages from the bottom up (ARCHITECTURE.md says what each layer is)."""

IMPURE = {
    "asyncio", "concurrent", "io", "logging", "os", "pathlib", "queue", "random", "secrets",
    "select", "signal", "socket", "sqlite3", "structlog", "subprocess", "tempfile", "threading",
    "time", "uvloop",
}  # fmt: skip

FUNCTION_LINES_MAX = 70
PROTOCOL_METHODS_MAX = 10
WIDE_PROTOCOLS = {"TopicQueries"}  # a method per endpoint; its two sides are admin's own
MUTABLE_CALLS = {
    "dict", "list", "set", "defaultdict", "deque", "OrderedDict", "Counter", "bytearray",
}  # fmt: skip


def import_table(modules: Sequence[Module]) -> list[str]:
    """No package imports one that the table does not give it."""
    faults = []
    for module in modules:
        if module.name.split(".")[0] != "magnetar":
            continue
        narrower = next(
            (found for name, found in NARROWER_PACKAGES.items() if module.name.startswith(name)),
            None,
        )
        allowed = NARROWER.get(module.name, narrower or MAY_IMPORT.get(module.package))
        if allowed is None:
            faults.append(f"{module.path}: package {module.package!r} is not in the table")
            continue
        for package, line in _packages_imported(module):
            if package != module.package and package not in allowed:
                faults.append(f"{module.path}:{line}: {module.package} may not import {package}")
    return faults


def _packages_imported(module: Module) -> list[tuple[str, int]]:
    packages = []
    for item in module.imports:
        parts = item.module.split(".")
        if parts[0] == "magnetar" and len(parts) > 1 and parts[1] != "__version__":
            packages.append((parts[1], item.line))
    return packages


def nothing_imports_the_simulator(modules: Sequence[Module]) -> list[str]:
    """The product knows nothing of the simulator, which stands beside it and is not installed."""
    return [
        f"{module.path}:{item.line}: imports {item.module}"
        for module in modules
        if module.name.split(".")[0] != "magnetar_sim"
        for item in module.imports
        if item.module.split(".")[0] == "magnetar_sim"
    ]


ABOVE_THE_SEAM = {"cluster", "topics", "protocols"}


def topics_see_only_the_seam(modules: Sequence[Module]) -> list[str]:
    """Topics and protocols import ``log.seam``, the values that it speaks of (policies), the rules
    of sequences and acknowledgement state, no engine."""
    allowed = (
        "magnetar.log.seam",
        "magnetar.log.policy",
        "magnetar.log.acknowledgements",
        "magnetar.log.ack_images",
        "magnetar.log.sequences",
        "magnetar.log.survivors",
        "magnetar.log.surviving",
    )
    return [
        f"{module.path}:{item.line}: imports {item.module}, below the seam"
        for module in modules
        if module.name.startswith("magnetar.") and module.package in ABOVE_THE_SEAM
        for item in module.imports
        if item.module.startswith("magnetar.log.") and not item.module.startswith(allowed)
    ]


def no_cycle(modules: Sequence[Module]) -> list[str]:
    """No import cycle between modules. Lazy imports count, and so do type-checking ones: a part
    that must name another to be understood depends on it."""
    names = {module.name for module in modules}
    graph = {
        module.name: sorted(
            {item.module for item in module.imports if item.module in names} - {module.name}
        )
        for module in modules
    }
    done: set[str] = set()
    faults: list[str] = []
    for name in graph:
        _visit(name, graph, [], done, faults)
    return faults


def no_cycle_between_inner_packages(modules: Sequence[Module]) -> list[str]:
    """What holds of modules holds of the packages within a package (``bookie/journal/``), each
    taken as one, beside the modules that stand in none."""
    graph: dict[str, set[str]] = {}
    for module in modules:
        own = _inner_package(module.name)
        targets = {_inner_package(item.module) for item in module.imports}
        graph.setdefault(own, set()).update(
            target for target in targets - {own} if target.split(".")[:2] == own.split(".")[:2]
        )
    known = {name: sorted(targets & graph.keys()) for name, targets in graph.items()}
    done: set[str] = set()
    faults: list[str] = []
    for name in known:
        _visit(name, known, [], done, faults)
    return faults


def _inner_package(name: str) -> str:
    """``magnetar.bookie.journal`` of what is in it; of a module that is in none, its own name."""
    return ".".join(name.split(".")[:3])


def _visit(
    name: str, graph: dict[str, list[str]], trail: list[str], done: set[str], faults: list[str]
) -> None:
    if name in trail:
        faults.append("cycle: " + " -> ".join([*trail[trail.index(name) :], name]))
        return
    if name in done:
        return
    for target in graph[name]:
        _visit(target, graph, [*trail, name], done, faults)
    done.add(name)


def layers(modules: Sequence[Module]) -> list[str]:
    """Every module of a crowded package has its layer, and imports none of a layer above it."""
    return [
        fault
        for package, names in LAYERS.items()
        for fault in _layer_faults(modules, package, names)
    ]


def _layer_faults(
    modules: Sequence[Module], package: str, layers: Sequence[Sequence[str]]
) -> list[str]:
    level = {name: number for number, names in enumerate(layers) for name in names}
    faults = []
    for module in modules:
        if not module.name.startswith(f"{package}."):
            continue
        own = level.get(part_of(package, module.name))
        if own is None:
            faults.append(f"{module.path}: {module.name} is in no layer")
            continue
        faults += [
            f"{module.path}:{item.line}: imports {item.module}, of a layer above"
            for item in module.imports
            if item.module.startswith(f"{package}.")
            and level.get(part_of(package, item.module), 0) > own
        ]
    return faults


def part_of(package: str, name: str) -> str:
    """The file or folder of ``package`` that a module is in."""
    return name.removeprefix(f"{package}.").split(".")[0]


def deciding_modules_are_pure(modules: Sequence[Module]) -> list[str]:
    """Modules that decide import nothing impure, nor other modules of ours that do."""
    by_name = {module.name: module for module in modules}
    faults = []
    for module in modules:
        if module.name not in DECIDING:
            continue
        for reached in sorted(_reachable(module.name, by_name)):
            for item in by_name[reached].imports:
                if item.module.split(".")[0] in IMPURE and not item.typing:
                    where = f"{by_name[reached].path}:{item.line}"
                    faults.append(f"{where}: {item.module} is reached from {module.name}")
        faults += [
            f"{module.path}:{node.lineno}: a coroutine in a deciding module"
            for node in ast.walk(module.tree)
            if isinstance(node, ast.AsyncFunctionDef | ast.Await)
        ]
    return faults


def _reachable(name: str, by_name: dict[str, Module]) -> set[str]:
    seen: set[str] = set()
    todo = [name]
    while todo:
        current = todo.pop()
        if current in seen or current not in by_name:
            continue
        if current == "magnetar.speedups":
            # It reads one variable, when it is imported; what it hands out is pure.
            todo.append("magnetar.speedups.pure")
            continue
        seen.add(current)
        todo += [item.module for item in by_name[current].imports if not item.typing]
    return seen


def functions_are_short(modules: Sequence[Module]) -> list[str]:
    """No function past ``FUNCTION_LINES_MAX`` lines, its docstring not counted."""
    faults = []
    for module in modules:
        for function in module.functions():
            lines = (function.end_lineno or function.lineno) - function.lineno + 1
            lines -= _docstring_lines(function)
            if lines > FUNCTION_LINES_MAX:
                faults.append(f"{module.path}:{function.lineno}: {function.name}: {lines} lines")
    return faults


def _docstring_lines(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    first = function.body[0]
    if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant):
        return (first.end_lineno or first.lineno) - first.lineno + 1
    return 0


def seams_are_narrow(modules: Sequence[Module]) -> list[str]:
    """No protocol has more than ``PROTOCOL_METHODS_MAX`` methods, those included that it inherits
    from protocols of its module."""
    faults = []
    for module in modules:
        classes = {node.name: node for node in module.tree.body if isinstance(node, ast.ClassDef)}
        for node in classes.values():
            if "Protocol" not in _base_names(node) or node.name in WIDE_PROTOCOLS:
                continue
            methods = _methods(node, classes)
            if len(methods) > PROTOCOL_METHODS_MAX:
                faults.append(f"{module.path}:{node.lineno}: {node.name}: {len(methods)} methods")
    return faults


def _base_names(node: ast.ClassDef) -> list[str]:
    """The names of a class's bases, without their parameters."""
    bases = [base.value if isinstance(base, ast.Subscript) else base for base in node.bases]
    return [base.id for base in bases if isinstance(base, ast.Name)]


def _methods(node: ast.ClassDef, classes: dict[str, ast.ClassDef]) -> set[str]:
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    found = {item.name for item in node.body if isinstance(item, kinds)}
    for name in _base_names(node):
        if name in classes:
            found |= _methods(classes[name], classes)
    return found


def no_module_level_mutable_state(modules: Sequence[Module]) -> list[str]:
    """No mutable object at module level unless its name says constant and nothing writes it,
    and no ``global`` statement at all."""
    faults = []
    for module in modules:
        for node in module.tree.body:
            for name, value in _assignments(node):
                if _mutable(value) and not name.isupper() and name != "__all__":
                    faults.append(f"{module.path}:{node.lineno}: {name} is mutable state")
                if isinstance(value, ast.Call) and _called(value) in MUTABLE_CALLS - {"set"}:
                    faults.append(f"{module.path}:{node.lineno}: {name} is mutable state")
        faults += [
            f"{module.path}:{node.lineno}: global statement"
            for node in ast.walk(module.tree)
            if isinstance(node, ast.Global)
        ]
        faults += _writes_to_constants(module)
    return faults


def _assignments(node: ast.stmt) -> list[tuple[str, ast.expr]]:
    if isinstance(node, ast.Assign):
        return [(t.id, node.value) for t in node.targets if isinstance(t, ast.Name)]
    if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value:
        return [(node.target.id, node.value)]
    return []


def _called(call: ast.Call) -> str:
    function = call.func
    if isinstance(function, ast.Attribute):
        return function.attr
    return function.id if isinstance(function, ast.Name) else ""


def _mutable(value: ast.expr) -> bool:
    kinds = (ast.List, ast.Dict, ast.Set, ast.ListComp, ast.DictComp, ast.SetComp)
    return isinstance(value, kinds)


def _writes_to_constants(module: Module) -> list[str]:
    """Item writes and mutating calls on upper-case module names, from inside functions."""
    mutators = {"append", "add", "update", "pop", "clear", "extend", "setdefault", "remove"}
    faults = []
    for function in module.functions():
        for node in ast.walk(function):
            target: ast.expr | None = None
            if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store | ast.Del):
                target = node.value
            elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                target = node.func.value if node.func.attr in mutators else None
            if isinstance(target, ast.Name) and target.id.isupper():
                faults.append(f"{module.path}:{node.lineno}: writes to {target.id}")
    return faults


def no_swallowed_errors(modules: Sequence[Module]) -> list[str]:
    """No bare except, and none of ``BaseException`` that does not raise again."""
    faults = []
    for module in modules:
        for node in ast.walk(module.tree):
            if isinstance(node, ast.ExceptHandler):
                broad = node.type is None or (
                    isinstance(node.type, ast.Name) and node.type.id == "BaseException"
                )
                raises = any(isinstance(inner, ast.Raise) for inner in ast.walk(node))
                if broad and not raises:
                    faults.append(f"{module.path}:{node.lineno}: swallows every error")
    return faults


def one_class_one_name(modules: Sequence[Module]) -> list[str]:
    """No two classes of the package have one name: a word has one meaning."""
    owners: dict[str, str] = {}
    faults = []
    for module in modules:
        if module.name.split(".")[0] != "magnetar":
            continue
        for node in ast.walk(module.tree):
            if isinstance(node, ast.ClassDef):
                owner = owners.setdefault(node.name, module.name)
                if owner != module.name:
                    faults.append(f"{module.path}:{node.lineno}: {node.name} is {owner}'s")
    return faults


ALL: tuple[Rule, ...] = (
    import_table,
    nothing_imports_the_simulator,
    topics_see_only_the_seam,
    no_cycle,
    no_cycle_between_inner_packages,
    layers,
    deciding_modules_are_pure,
    functions_are_short,
    seams_are_narrow,
    no_module_level_mutable_state,
    no_swallowed_errors,
    one_class_one_name,
)
