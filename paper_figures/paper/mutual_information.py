"""Figure 10: mutual information of token pairs by their distance, with the fit C0 + a·d^k."""
