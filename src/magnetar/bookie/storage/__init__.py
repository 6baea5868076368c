"""Where entries lie: write cache, entry logs, location index, marks, read cache."""
