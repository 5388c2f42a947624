"""`python -m ledger.cli` is the command `ledger`."""

from ledger.cli import main

main()
