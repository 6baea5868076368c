"""Who gets which entries: the deciding machines of dispatch, one per subscription. Pure.

A machine owns its *seats*, one per consumer, and nobody else writes them. It is told what happens
(a consumer comes, leaves, gives permits, acknowledges, gives entries back; its connection can take
no more, or more again) and is asked two things: for about how many messages there is room, and who
gets these entries. To the latter it answers with runs of entries per seat, which it has charged
already, and with what is left over. It never holds an entry back: what it does not place is the
asker's (``Placed.left``).

Rules that all machines share:

* Permits count messages. An entry is placed while its consumer has any permit left, so a batch may
  take the permits below zero; the consumer pays that back with its next FLOW. (A batch that is
  larger than a receiver queue could never be sent otherwise.)
* Entries are placed in the order in which they come.
* An entry is out at one seat at most.

``single_active`` serves exclusive and failover subscriptions, ``shared`` shared ones, and ``keyed``
those that are shared by key (its ``left`` need not be the end of what was asked about).

Why: docs/adr/0064-dispatch.md, docs/adr/0067-dispatch-machines-own-their-seats.md,
docs/adr/0160-hashes-are-held-by-what-is-out.md.
"""
