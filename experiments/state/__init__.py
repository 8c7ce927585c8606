"""The work of the commands that show how far a study is, or that end, collect or clean what was
submitted: `plan` (`plan_table`), `status`, `cancel`, `logs`, `collect` and `clean`."""
