from hf_specgen.cli import main

main()
