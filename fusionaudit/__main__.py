"""``python -m fusionaudit``."""

from fusionaudit.cli import main

main(prog_name="fusionaudit")
