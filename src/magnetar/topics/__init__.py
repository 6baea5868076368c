"""Topics without any wire: topic, producers, subscriptions, dispatch, the registry of open ones.

A protocol's front end (``protocols.pulsar``) publishes to ``topic.Topic`` and gets its entries
from ``dispatcher.Dispatcher``; below is the log's seam (``log.seam``).
"""
