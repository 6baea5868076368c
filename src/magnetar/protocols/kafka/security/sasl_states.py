"""The states of a connection whose client must show who it is, and what moves it: the table, as
data.

* ``NEW``: nobody is known; ApiVersions may be asked for.
* ``CHOSEN``: a mechanism was chosen, and its messages go to and fro.
* ``KNOWN``: all is served that the client's role may do.
* ``RENEWING``: as ``CHOSEN``, of a client that is known: it shows again who it is (KIP-368).
* ``REFUSED``: the connection ends.

Pure.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final

from magnetar.model.transitions import Transition, next_states


class SaslState(StrEnum):
    NEW = "new"
    CHOSEN = "chosen"
    KNOWN = "known"
    RENEWING = "renewing"
    REFUSED = "refused"


class SaslEvent(StrEnum):
    VERSIONS = "ApiVersions"
    HANDSHAKE = "SaslHandshake with a mechanism that is offered"
    OTHER_MECHANISM = "SaslHandshake with another mechanism"
    MESSAGE = "SaslAuthenticate that does not end the exchange"
    PROVED = "SaslAuthenticate that proves who the client is"
    FAILED = "SaslAuthenticate that does not"
    WITHOUT = "any other request, and the client need not show more"
    REQUEST = "any other request"


_S, _E = SaslState, SaslEvent
TRANSITIONS: Final = (
    Transition(_S.NEW, _E.VERSIONS, _S.NEW, "what is served"),
    Transition(_S.NEW, _E.HANDSHAKE, _S.CHOSEN, "NONE"),
    Transition(_S.NEW, _E.OTHER_MECHANISM, _S.REFUSED, "UNSUPPORTED_SASL_MECHANISM"),
    Transition(_S.NEW, _E.WITHOUT, _S.KNOWN, "its certificate's role, or the anonymous one"),
    Transition(_S.NEW, _E.REQUEST, _S.REFUSED, "no answer"),
    Transition(_S.CHOSEN, _E.MESSAGE, _S.CHOSEN, "the mechanism's answer"),
    Transition(_S.CHOSEN, _E.PROVED, _S.KNOWN, "NONE, and for how long it counts"),
    Transition(_S.CHOSEN, _E.FAILED, _S.REFUSED, "SASL_AUTHENTICATION_FAILED, late"),
    Transition(_S.CHOSEN, _E.REQUEST, _S.REFUSED, "no answer"),
    Transition(_S.KNOWN, _E.VERSIONS, _S.KNOWN, "what is served"),
    Transition(_S.KNOWN, _E.REQUEST, _S.KNOWN, "as its role may; no answer once its time is over"),
    Transition(_S.KNOWN, _E.HANDSHAKE, _S.RENEWING, "NONE"),
    Transition(_S.KNOWN, _E.OTHER_MECHANISM, _S.REFUSED, "UNSUPPORTED_SASL_MECHANISM"),
    Transition(_S.RENEWING, _E.MESSAGE, _S.RENEWING, "the mechanism's answer"),
    Transition(_S.RENEWING, _E.PROVED, _S.KNOWN, "NONE, if it is the same role"),
    Transition(_S.RENEWING, _E.FAILED, _S.REFUSED, "SASL_AUTHENTICATION_FAILED, late"),
    Transition(_S.RENEWING, _E.REQUEST, _S.REFUSED, "no answer"),
)
NEXT: Final = next_states(TRANSITIONS)
