"""Runs as three tables, wherever they were trained: `source` reads them; `columns` says what is in
them; `run_folders`, `archive` and `imports` make them; `eligible` says whose losses may be
compared."""
