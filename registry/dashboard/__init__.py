"""The dashboard: searches as Optuna studies, shown by optuna-dashboard (the extra ``dashboard``)."""
