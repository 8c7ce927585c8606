"""Should I use it? `expected` says what the law of the published runs expects, with an interval
that grows beyond them; `advise` puts it beside costs, rivals and a cheaper test."""
