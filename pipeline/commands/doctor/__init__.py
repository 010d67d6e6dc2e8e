"""`doctor` and its checks. Modules import only the standard library and `packaging`; other packages when called.

One function per module collects the facts; pure functions check them.
"""
