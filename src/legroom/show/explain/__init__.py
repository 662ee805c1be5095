"""Explanations of errors, and the result of `legroom doctor`."""
