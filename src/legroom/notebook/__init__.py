"""The IPython extension: `%load_ext legroom`, `%%legroom` and `%legroom free`. The extension imports IPython only
when it is loaded."""
