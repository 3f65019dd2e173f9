"""The report: the contents of a tuning database as one HTML file that needs nothing else.

``facts`` reads the store, ``figures`` aggregates, ``time_charts``, ``descent_chart`` and ``intervals`` draw, ``page``
fills the templates.
"""
