"""Who a client is, and what it may do: roles, the credentials that prove them, permissions.

``principals`` says what a client is once it is known; ``tokens`` and ``users`` are what it may
show; ``authenticator`` holds that against what this process was given. ``permissions`` decides,
``access`` asks it with what the metadata store says. Nothing of it is built while
``security.authentication`` is off.
"""
