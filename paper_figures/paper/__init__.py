"""The paper's tables and figures: published numbers and, where there are runs, measured ones."""
