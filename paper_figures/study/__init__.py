"""Pictures without a published counterpart, which show a study's own runs."""
