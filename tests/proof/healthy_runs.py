"""x."""


def run_healthy(n, seed):
    return True
