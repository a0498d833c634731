"""`ag-jax inspect`: the attention of models to a text, as tables, figures and a page."""
