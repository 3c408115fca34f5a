"""`python -m shanty` is the program `shanty`."""

from shanty.cli.app import program

program()
