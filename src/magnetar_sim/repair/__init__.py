"""Ring 2: auto-recovery beside bookies, and operators who empty bookies."""
