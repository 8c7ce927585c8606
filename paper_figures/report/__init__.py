"""Pages: `report.html`, on a study, and `reproduction.md`, which compares each figure and table
with the paper."""
