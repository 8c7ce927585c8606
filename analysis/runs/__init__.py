"""Run folders as rows: the columns of one run (`run_row`), which runs belong together
(`comparable`), whose losses may be compared (`eligible`), which a person took out (`exclusions`)
and a cache of the tables. `analysis.run_table` reads them."""
