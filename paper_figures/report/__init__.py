"""Pages: `report.html` of a study, and `reproduction.md` figure by figure."""
