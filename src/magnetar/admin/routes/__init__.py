"""The paths of the HTTP interface, a module a subject: each asks a service."""
