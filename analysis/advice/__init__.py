"""Advice on whether to superpose a planned run. `intended_run` says what is known near that run and
what gain to expect; `advise` sets this gain beside the costs, the alternatives and a cheaper
test."""
