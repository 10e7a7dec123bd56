"""`python -m tmifpe`, where the command is not on the path."""

from tmifpe.cli import main

if __name__ == "__main__":
    main()
