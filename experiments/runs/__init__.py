"""The verbs on a study that was submitted: `status`, `watch`, `logs`, `collect`, `clean`."""
