"""Should I use it? `planned_run` says what is known near a planned run and what gain to expect;
`advise` puts it beside costs, rivals and a cheaper test."""
