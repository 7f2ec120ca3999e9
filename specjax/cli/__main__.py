"""`python -m specjax.cli`, the same as the `specjax` command."""

from specjax.cli.app import main

main()
