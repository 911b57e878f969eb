"""Tables and figures of the papers: configurations, published scores, cached runs, text."""
