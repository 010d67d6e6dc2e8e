"""What doctor looks at. Nothing here needs more than the standard library and `packaging`, or imports it when called.

Facts are gathered in one place of each module and judged by functions that receive them.
"""
