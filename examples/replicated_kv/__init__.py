"""A replicated key-value store on Magnetar's ledgers; README.md explains it part by part."""
