from semfocus.cli import main

main()
