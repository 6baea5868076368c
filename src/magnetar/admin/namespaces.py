"""``NamespaceService``: what REST asks and tells about the cluster, tenants and namespaces."""

from __future__ import annotations

from collections.abc import Mapping

from magnetar.admin.views import ClusterView, TenantView
from magnetar.cluster.bundles import POLICY as BUNDLES
from magnetar.cluster.bundles import layout_of, policy_of
from magnetar.cluster.control_plane import ControlPlane
from magnetar.cluster.policies.policies import BY_CLUSTER
from magnetar.cluster.security.permissions import (
    AUTH_POLICIES,
    admin_roles,
    all_granted,
    granted,
    with_grant,
)
from magnetar.cluster.topic_name import parse_namespace, parse_tenant
from magnetar.model.errors import TopicNotFoundError


class NamespaceService:
    """``service_url`` and ``http_url`` are those of this broker."""

    def __init__(
        self,
        control: ControlPlane,
        service_url: str,
        http_url: str,
        by_tls: tuple[str, str] = ("", ""),
    ) -> None:
        """``by_tls``: both, by TLS, if that is served."""
        self._by_tls = by_tls
        self._namespaces = control.namespaces
        self.cluster = control.name
        self._service_url = service_url
        self._http_url = http_url

    def about_cluster(self, cluster: str) -> ClusterView:
        """Raises ``TopicNotFoundError`` for any other than this one."""
        if cluster != self.cluster:
            raise TopicNotFoundError(f"this is cluster {self.cluster!r}; it knows no other")
        service_url_tls, http_url_tls = self._by_tls
        return ClusterView(
            service_url=self._http_url,
            service_url_tls=http_url_tls or None,
            broker_service_url=self._service_url,
            broker_service_url_tls=service_url_tls or None,
        )

    async def tenants(self) -> list[str]:
        return await self._namespaces.tenants()

    async def about_tenant(self, tenant: str) -> TenantView:
        """Raises ``TopicNotFoundError``."""
        about = await self._namespaces.about_tenant(parse_tenant(tenant))
        return TenantView(admin_roles=admin_roles(about), allowed_clusters=[self.cluster])

    async def create_tenant(self, tenant: str, about: Mapping[str, object] | None = None) -> bool:
        """False when it exists."""
        return await self._namespaces.create_tenant(parse_tenant(tenant), about)

    async def change_tenant(self, tenant: str, about: Mapping[str, object]) -> None:
        """Raises ``TopicNotFoundError``."""
        await self._namespaces.change_tenant(parse_tenant(tenant), about)

    async def permissions(self, namespace: str, topic: str = "") -> Mapping[str, list[str]]:
        """Role -> what it may do; of a topic, by what is said for it alone. Raises
        ``TopicNotFoundError``."""
        return granted(await self._namespaces.policies(parse_namespace(namespace)), topic)

    async def grant(
        self, namespace: str, role: str, actions: list[str] | None, topic: str = ""
    ) -> None:
        """``role`` may do these and no others; None: nothing. Raises ``TopicNotFoundError``."""
        name = parse_namespace(namespace)
        await self._namespaces.change(name, lambda said: with_grant(said, role, actions, topic))

    async def namespaces(self, tenant: str) -> list[str]:
        """``tenant/namespace`` names. Raises ``TopicNotFoundError`` for an unknown tenant."""
        return await self._namespaces.namespaces(parse_tenant(tenant))

    async def about_namespace(self, namespace: str) -> Mapping[str, object]:
        """What is said for it, as Pulsar says it; also while it is being deleted. Raises
        ``TopicNotFoundError``, ``MetadataError``."""
        name = parse_namespace(namespace)
        said = await self._namespaces.policies(name)
        return {
            **{field: value for field, value in said.items() if value is not None},
            **{field: {self.cluster: said[field]} for field in BY_CLUSTER if said.get(field)},
            AUTH_POLICIES: all_granted(said),
            BUNDLES: policy_of(layout_of(name, said).boundaries),
            "replication_clusters": [self.cluster],
        }

    async def create_namespace(
        self, namespace: str, policies: Mapping[str, object] | None = None
    ) -> bool:
        """``tenant/namespace``; False when it exists. Raises ``TopicNotFoundError`` for an
        unknown tenant."""
        return await self._namespaces.create_namespace(parse_namespace(namespace), policies)

    async def check_namespace(self, namespace: str) -> None:
        """Raises ``TopicNotFoundError``."""
        await self._namespaces.check_namespace(parse_namespace(namespace))
