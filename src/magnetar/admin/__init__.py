"""REST and metrics over HTTP: what is there, and a few changes to it.

``views`` are the values shown, ``queries`` the narrow seams that answer them, ``api`` the paths
(Pulsar's admin v2 where Pulsar has them, ``/magnetar/v1`` for the rest), ``server`` the HTTP
server in the process's own event loop.
"""
