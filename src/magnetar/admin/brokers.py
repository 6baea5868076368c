"""``BrokerService``: what REST asks and tells about brokers and the bundles that they own."""

from __future__ import annotations

from magnetar.admin.elsewhere import AUTHORITATIVE, ServedElsewhereError
from magnetar.admin.peers import PeerRequest, Peers
from magnetar.admin.views import BrokerView, BundlesView, BundleView, OwnedView
from magnetar.cluster.bundles import Bundle, policy_of
from magnetar.cluster.control_plane import ControlPlane
from magnetar.cluster.ownership import At
from magnetar.cluster.reports import BrokerReport
from magnetar.cluster.topic_name import parse_namespace
from magnetar.model.errors import TopicNotFoundError


class BrokerService:
    """``http_url`` is that of this broker."""

    def __init__(self, control: ControlPlane, http_url: str, peers: Peers) -> None:
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
            for each in (await self._bundles.reports()).values()
        ]

    async def owned(self, broker_id: str) -> dict[str, OwnedView]:
        """The bundles that a broker owns."""
        await self._find(broker_id)
        shown = OwnedView(broker_assignment="shared", is_controlled=False, is_active=True)
        return {str(each): shown for each in self._bundles.owned()}

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
        layout = await self._bundles.layout(parse_namespace(namespace))
        bundle = layout.named(range_name)
        if bundle is None:
            raise TopicNotFoundError(
                f"namespace {namespace} has no bundle {range_name}; "
                "/admin/v2/namespaces/TENANT/NAMESPACE/bundles says how it is cut"
            )
        owner = await self._bundles.owner_of_bundle(bundle)
        if isinstance(owner, At):
            if AUTHORITATIVE.get():
                return  # whoever sent this here knew it as ours: it has been given away since
            raise ServedElsewhereError(f"bundle {bundle}", owner.http_url)
        await self._bundles.release(bundle)

    async def unload_namespace(self, namespace: str) -> None:
        """Every bundle of it, one after the other. Raises ``TopicNotFoundError``, ``PeerError``."""
        layout = await self._bundles.layout(parse_namespace(namespace))
        for bundle in layout.bundles():
            try:
                await self.unload(namespace, bundle.range_name)
            except ServedElsewhereError as error:
                path = f"/admin/v2/namespaces/{bundle}/unload"
                await self._peers.ask(error.http_url, PeerRequest("PUT", path))
