"""``BrokerService``: what REST asks and tells about brokers and the bundles that they own."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Final, TypeAlias

from magnetar.admin.elsewhere import AUTHORITATIVE, ServedElsewhereError
from magnetar.admin.peers import PeerRequest, Peers
from magnetar.admin.views import BrokerView, BundlesView, BundleView, OwnedView
from magnetar.cluster.brokers.reports import BrokerReport
from magnetar.cluster.bundles import Bundle, policy_of
from magnetar.cluster.control_plane import ControlPlane
from magnetar.cluster.ownership import At, SoleBroker
from magnetar.cluster.topic_name import TopicName, parse_namespace
from magnetar.config import Config
from magnetar.model.errors import NotAllowedError, ServiceNotReadyError, TopicNotFoundError
from magnetar.topics.parts import each_of

TopicNames: TypeAlias = Callable[[str], Awaitable[Sequence[TopicName]]]

ALGORITHMS: Final[Mapping[str, Callable[[Bundle, Sequence[TopicName]], int]]] = {
    "range_equally_divide": lambda bundle, _names: bundle.middle(),
    "topic_count_equally_divide": lambda bundle, names: bundle.median(names),
}
"""Pulsar's names: where a bundle is cut, by the topics of its namespace."""
DEFAULT_ALGORITHM: Final = "range_equally_divide"


class BrokerService:
    """``http_url`` is that of this broker; ``topic_names`` lists a namespace; ``config`` is only
    shown."""

    def __init__(
        self,
        control: ControlPlane,
        http_url: str,
        peers: Peers,
        topic_names: TopicNames,
        config: Config,
    ) -> None:
        self._config = config
        self._topic_names = topic_names
        self._control = control
        self._peers = peers
        self._bundles = control.bundles
        self._http_url = http_url

    # -- brokers ------------------------------------------------------------------------------

    async def names(self, cluster: str = "") -> list[str]:
        """The ids of all, sorted. Raises ``TopicNotFoundError`` for another cluster."""
        if cluster and cluster != self._control.name:
            raise TopicNotFoundError(f"this is cluster {self._control.name!r}; it knows no other")
        return sorted(await self._bundles.reports())

    def configuration(self) -> dict[str, str]:
        """Settings by name, as text, and the cluster's name as Pulsar calls it: its admin tool
        marks this cluster by that when it lists clusters."""
        return {"clusterName": self._control.name, **dict(_shown(self._config, ""))}

    async def brokers(self) -> list[BrokerView]:
        return [
            BrokerView(
                broker_id=each.broker_id,
                service_url=each.service_url,
                http_url=each.http_url,
                version=each.version,
                zone=each.zone,
                draining=each.draining,
                read_only=each.read_only,
                bundles=each.bundles,
                topics=each.topics,
                msg_rate_in=each.messages_in_per_s,
                msg_rate_out=each.messages_out_per_s,
            )
            for each in await self._reports()
        ]

    async def _reports(self) -> Sequence[BrokerReport]:
        """One that is alone reports to nobody, and is asked."""
        if isinstance(self._bundles, SoleBroker):
            return await self._bundles.shown()
        return [*(await self._bundles.reports()).values()]

    async def owned(self, broker_id: str) -> dict[str, OwnedView]:
        """The bundles that a broker owns."""
        await self._find(broker_id)
        shown = OwnedView(broker_assignment="shared", is_controlled=False, is_active=True)
        bundles = self._bundles
        if isinstance(bundles, SoleBroker):
            return {str(each): shown for each in await bundles.all_bundles()}
        return {str(each): shown for each in bundles.owned()}

    async def drain(self, broker_id: str) -> None:
        """Have it hand over what it owns, and take nothing more. Raises ``TopicNotFoundError``,
        ``NotAllowedError``."""
        await self._find(broker_id)
        await self._bundles.drain()

    async def undrain(self, broker_id: str) -> None:
        await self._find(broker_id)
        await self._bundles.undrain()

    async def _find(self, broker_id: str) -> BrokerReport:
        """This broker's own; another answers for itself."""
        reports = await self._bundles.reports()
        report = reports.get(broker_id)
        if report is None:
            raise TopicNotFoundError(
                f"there is no broker {broker_id}; there are {', '.join(sorted(reports))}"
            )
        if report.http_url != self._http_url:
            raise ServedElsewhereError(f"broker {broker_id}", report.http_url)
        return report

    # -- bundles ------------------------------------------------------------------------------

    async def bundles(self, namespace: str) -> BundlesView:
        """How a namespace is cut, in Pulsar's words. Raises ``TopicNotFoundError``."""
        layout = await self._bundles.layout(parse_namespace(namespace))
        return BundlesView.model_validate(policy_of(layout.boundaries))

    async def owners(self, namespace: str) -> list[BundleView]:
        """Who owns which part of it."""
        layout = await self._bundles.layout(parse_namespace(namespace))
        return [
            BundleView(bundle=each.range_name, owner=await self._owner(each))
            for each in layout.bundles()
        ]

    async def _owner(self, bundle: Bundle) -> str:
        owner = await self._bundles.owner_of_bundle(bundle)
        if owner is None:
            return ""
        return (owner.http_url if isinstance(owner, At) else self._http_url).partition("://")[2]

    async def unload(self, namespace: str, range_name: str) -> None:
        """Have the owner of a bundle release it; fine if nobody owns it. Raises
        ``TopicNotFoundError``, ``ServedElsewhereError``."""
        bundle = await self._bundle(namespace, range_name)
        if not await self._given_away(bundle):
            await self._bundles.release(bundle)

    async def split(
        self, namespace: str, range_name: str, algorithm: str = "", unload: bool = False
    ) -> None:
        """Have the owner of a bundle cut it in two; with ``unload`` both are released then. Raises
        as ``unload``, and ``NotAllowedError``."""
        at = ALGORITHMS.get(algorithm or DEFAULT_ALGORITHM)
        if at is None:
            raise NotAllowedError(
                f"bundles are not split by {algorithm!r}; accepted: {', '.join(sorted(ALGORITHMS))}"
            )
        bundle = await self._bundle(namespace, range_name)
        if await self._given_away(bundle):
            return
        if await self._bundles.owner_of_bundle(bundle) is None:
            raise ServiceNotReadyError(
                f"bundle {bundle} has no owner, who would split it; a lookup of one of its topics "
                "gives it one"
            )
        boundary = at(bundle, await self._topic_names(bundle.namespace))
        if await self._bundles.cut(bundle, boundary) and unload:
            for half in bundle.halves(boundary):
                await self._bundles.release(half)

    async def _bundle(self, namespace: str, range_name: str) -> Bundle:
        layout = await self._bundles.layout(parse_namespace(namespace))
        bundle = layout.named(range_name)
        if bundle is None:
            raise TopicNotFoundError(
                f"namespace {namespace} has no bundle {range_name}; "
                "/admin/v2/namespaces/TENANT/NAMESPACE/bundles says how it is cut"
            )
        return bundle

    async def _given_away(self, bundle: Bundle) -> bool:
        """Whether another broker has it that this request was not sent on from. Raises
        ``ServedElsewhereError`` if it must be."""
        owner = await self._bundles.owner_of_bundle(bundle)
        if not isinstance(owner, At):
            return False
        if AUTHORITATIVE.get():
            return True  # whoever sent this here knew it as ours: it has been given away since
        raise ServedElsewhereError(f"bundle {bundle}", owner.http_url)

    async def unload_namespace(self, namespace: str) -> None:
        """Every bundle of it, one after the other. Raises ``TopicNotFoundError``, and as
        ``parts.each_of``."""
        layout = await self._bundles.layout(parse_namespace(namespace))
        bundles = list(layout.bundles())
        await each_of(f"bundles of {namespace}", bundles, "released", self._unload_bundle, str)

    async def _unload_bundle(self, bundle: Bundle) -> None:
        try:
            await self.unload(bundle.namespace, bundle.range_name)
        except ServedElsewhereError as error:
            path = f"/admin/v2/namespaces/{bundle}/unload"
            await self._peers.ask(error.http_url, PeerRequest("PUT", path))


def _shown(section: object, above: str) -> Iterator[tuple[str, str]]:
    """Names are those of configuration files. None is a secret: those lie in files."""
    assert is_dataclass(section)
    for field in fields(section):
        value, name = getattr(section, field.name), above + field.name
        if is_dataclass(value):
            yield from _shown(value, name + ".")
        elif isinstance(value, bool):
            yield name, str(value).lower()
        elif isinstance(value, tuple):
            yield name, ",".join(map(str, value))
        else:
            yield name, str(value)
