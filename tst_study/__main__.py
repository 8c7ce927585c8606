from tst_study.commands.command_line import main

main()
