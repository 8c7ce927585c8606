"""Pictures of a study's own runs, which have no published counterpart."""
