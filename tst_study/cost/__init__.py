"""The cost of a run before it runs, without torch: FLOPs (`compute`), `memory`, the speeds of
`devices`, GPU-hours and their price (`prices`), the layouts that work (`parallel_layout`), the
bytes that they move (`traffic`), and the choice among them (`auto_layout`)."""
