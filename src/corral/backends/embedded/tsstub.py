def installed(x):
    return None
