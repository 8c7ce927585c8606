from tst_study.command_line import main

main()
