"""Runs as three tables, wherever they were trained: `source` reads them; `columns` says what is in
them; `run_folders`, `archive` and `imports` make them, the last from `foreign_logs` and from what
`sheets` reads of people's own tables; `eligible` says whose losses may be compared."""
