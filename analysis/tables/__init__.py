"""Runs as three tables (runs, curves, evaluations), wherever they were trained. `columns` says what
is in the tables. `source` reads them from folders: `run_folders` makes them from the records of our
trainer, and `archive` stores them in parquet files and reads them again. `imports` makes them from
the logs of other trainers (`foreign_logs`) and from tables that people wrote (`sheets`). `eligible`
says which runs have final losses that may be compared."""
