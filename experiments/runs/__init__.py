"""The verbs on a study that was submitted: `status`, `logs`, `cancel`, `collect`, `clean`."""
