"""A ledger's one writer: quorum, change of the ensemble, deferred sync."""
