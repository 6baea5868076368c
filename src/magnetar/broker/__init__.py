"""Serving topics to Pulsar clients: sessions, topics, subscriptions, dispatch, lookup.

``broker.Broker`` is the room's front; a message comes in through ``session``, ``producer`` and
``topic``, and leaves through ``dispatch``, ``subscription``, ``consumer`` and the session again.
"""
