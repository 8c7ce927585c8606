"""The paper's numbers held against each other, and the mutual information of a text that it
measures. `analysis.published` has the numbers themselves."""
