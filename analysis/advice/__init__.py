"""Should I use it? `planned_run` says what is known near a planned run and what gain to expect;
`advise` sets that gain beside the costs, the alternatives and a cheaper test."""
