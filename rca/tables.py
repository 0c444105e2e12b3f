"""The tables of the archive. Columns may be looked for; what is only read back is in a `body`, as JSON."""

import sqlalchemy as sql

TABLES = sql.MetaData()
INCIDENTS = sql.Table(
    "incidents",
    TABLES,
    sql.Column("id", sql.String(16), primary_key=True),
    sql.Column("job", sql.Text, nullable=False, index=True),
    sql.Column("cause", sql.Text, nullable=False, index=True),
    sql.Column("layer", sql.Text, nullable=False),
    sql.Column("place", sql.Text, nullable=False),
    sql.Column("node", sql.Text, nullable=False, index=True),
    sql.Column("state", sql.Text, nullable=False, index=True),
    sql.Column("first", sql.Float, nullable=False, index=True),
    sql.Column("last", sql.Float, nullable=False),
    sql.Column("closed", sql.Float, index=True),
    sql.Column("report", sql.String(16), nullable=False),
    sql.Column("latest", sql.String(16), nullable=False),
    sql.Column("body", sql.LargeBinary, nullable=False),
)
REPORTS = sql.Table(
    "reports",
    TABLES,
    sql.Column("id", sql.String(16), primary_key=True),
    sql.Column("at", sql.Float, nullable=False, index=True),
    sql.Column("status", sql.Text, nullable=False),
    sql.Column("rules", sql.Text, nullable=False),
    sql.Column("body", sql.LargeBinary, nullable=False),
)
RECORDINGS = sql.Table(
    "recordings",
    TABLES,
    sql.Column("report", sql.String(16), primary_key=True),
    sql.Column("at", sql.Float, nullable=False, index=True),
    sql.Column("body", sql.LargeBinary, nullable=False),
)
ALERTS = sql.Table(
    "alerts",
    TABLES,
    sql.Column("key", sql.String(64), primary_key=True),
    sql.Column("number", sql.Integer, nullable=False, index=True),
    sql.Column("received", sql.Float, nullable=False, index=True),
    sql.Column("state", sql.Text, nullable=False, index=True),
    sql.Column("said", sql.Text, nullable=False),
    sql.Column("report", sql.String(16), nullable=False),
    sql.Column("body", sql.LargeBinary, nullable=False),
)
CLAIMS = sql.Table(
    "claims",
    TABLES,
    sql.Column("key", sql.String(64), primary_key=True),
    sql.Column("owner", sql.Text, nullable=False),
    sql.Column("until", sql.Float, nullable=False),
)
TOLD = sql.Table(
    "told",
    TABLES,
    sql.Column("incident", sql.String(16), primary_key=True),
    sql.Column("receiver", sql.String(16), primary_key=True),
    sql.Column("said", sql.Text, nullable=False),
    sql.Column("until", sql.Float, nullable=False),
    sql.Column("tries", sql.Integer, nullable=False),
)
NOTES = sql.Table(
    "notes",
    TABLES,
    sql.Column("number", sql.Integer, primary_key=True),
    sql.Column("incident", sql.String(16), nullable=False, index=True),
    sql.Column("at", sql.Float, nullable=False),
    sql.Column("who", sql.Text, nullable=False),
    sql.Column("verdict", sql.Text, nullable=False),
    sql.Column("text", sql.Text, nullable=False),
)
PROGRESS = sql.Table(
    "progress",
    TABLES,
    sql.Column("job", sql.Text, primary_key=True),
    sql.Column("at", sql.Float, primary_key=True, index=True),
    sql.Column("body", sql.LargeBinary, nullable=False),
)
SIGHTINGS = sql.Table(
    "sightings",
    TABLES,
    sql.Column("incident", sql.String(16), primary_key=True),
    sql.Column("at", sql.Float, primary_key=True, index=True),
    sql.Column("report", sql.String(16), nullable=False),
    sql.Column("probability", sql.Float, nullable=False),
    sql.Column("slowdown", sql.Float),
)
