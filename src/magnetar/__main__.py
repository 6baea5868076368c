"""``python -m magnetar``."""

from __future__ import annotations

from magnetar.cli.main import main

if __name__ == "__main__":
    main()
