"""Whether anything stays of what clients have made, used and deleted."""
