"""Run folders as rows: the columns of one run (`run_row`), which runs may be compared
(`comparable`), which a person took out (`exclusions`), a cache of the tables, and the `schema` of
runs that were trained elsewhere. `analysis.run_table` reads them."""
