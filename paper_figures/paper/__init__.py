"""The paper's tables and figures: published numbers and, if there are runs, measured ones beside
them."""
