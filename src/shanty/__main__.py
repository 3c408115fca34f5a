"""`python -m shanty` is the program `shanty`."""

from shanty.program import program

program()
