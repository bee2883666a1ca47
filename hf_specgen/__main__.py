"""`python -m hf_specgen`: the `hf-specgen` command."""

from hf_specgen.cli import main

main()
