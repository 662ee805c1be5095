"""The IPython extension: `%load_ext legroom`, `%%legroom` and `%legroom free`. Imports IPython only when it is loaded."""
