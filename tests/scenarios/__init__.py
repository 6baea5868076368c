"""The loss scenarios: faults that have one right outcome, and tests that count it."""
