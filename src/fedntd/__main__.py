"""`python -m fedntd` is the command `fedntd`, where that is not on the path."""

from fedntd.cli import main

main()
