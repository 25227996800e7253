"""Temporary."""
class D:
    summary = "cpu"
def describe_backend(): return D()
