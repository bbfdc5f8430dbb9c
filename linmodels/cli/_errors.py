"""What a person gave that cannot be used."""


class InputError(ValueError):
    """A message for the person at the terminal: what was wrong, with the value, and what to change.

    The command prints it on stderr and ends with exit code 2, without a traceback.
    """
