"""One run on disk, in the order in which it comes about: its `identity` and the trunk it may share,
the `lock` on its folder, the `launch_facts` of each launch, the `log` of its steps, the `trackers`
that copy them, the `writer` of its files. `tst_study.run_record` reads it back. Torch-free."""
