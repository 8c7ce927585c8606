"""Tables and figures: published numbers and run folders → pictures, tables, a report. No torch.

`catalogue` lists them; `paper/`, `extensions/` and `study/` make them, one file for each; `build`
writes them.
"""
