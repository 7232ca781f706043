"""Addresses in MLflow's pages: charts of the methods of one comparison, side by side."""

from __future__ import annotations

from urllib.parse import quote, urlencode, urlsplit, urlunsplit

from netsplit.tracking.database import open_client
from netsplit.tracking.metrics import COMPARISON

__all__ = ["charts_of", "newest_charts", "server_of"]


def charts_of(experiment_id: str, run_id: str) -> str:
    """What follows a server's address: the charts of the methods of the comparison with this run's id."""
    query = {
        "workflowType": "machine_learning",
        "compareRunsMode": "CHART",
        "searchFilter": f"tags.{COMPARISON}='{run_id}'",
    }
    return f"#/experiments/{quote(experiment_id)}/runs?{urlencode(query, quote_via=quote)}"


def server_of(uri: str) -> str:
    """A tracking server's address for a link: without name and password; empty where `uri` is of none."""
    parts = urlsplit(uri)
    if not parts.scheme.startswith("http"):
        return ""
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2])).rstrip("/") + "/"


def newest_charts(uri: str) -> str | None:
    """The charts of the newest comparison that is recorded at `uri`; None where there is none.

    Raises:
        ConfigError: `uri` cannot be opened.
    """
    client = open_client(uri)
    experiments = [each.experiment_id for each in client.search_experiments()]
    condition = f"tags.role = 'method' and tags.{COMPARISON} LIKE '%'"
    newest = ["attributes.start_time DESC"]
    for run in client.search_runs(experiments, condition, max_results=1, order_by=newest):
        return charts_of(run.info.experiment_id, run.data.tags[COMPARISON])
    return None
