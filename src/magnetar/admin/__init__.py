"""REST and metrics over HTTP: what is there, and a few changes to it.

One service per area asks the parts themselves and answers with views: ``topics`` (the registry of
open topics), ``namespaces`` (the control plane), ``ledgers`` (the ledger client), and the checks of
``env.health``. ``*_api`` are the paths (Pulsar's admin v2 where Pulsar has them, ``/magnetar/v1``
for the rest; docs/rest.md), ``server`` is the HTTP server in the process's own event loop.
"""
