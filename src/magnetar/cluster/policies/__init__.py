"""Policies of namespaces and topics: values, rules, and where they are stored."""
