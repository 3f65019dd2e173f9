"""The report: what a tuning database holds, as one HTML file that needs nothing else.

``facts`` reads the store, ``figures`` aggregates, ``time_charts``, ``descent_chart`` and ``intervals`` draw, ``page``
fills the templates.
"""
