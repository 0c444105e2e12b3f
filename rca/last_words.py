"""The last words of ranks: what each wrote in its last seconds, in the report of a job that has failed."""

from collections.abc import Sequence

from rca.model import LastWords, LogLine, Quote, Snapshot
from rca.plain import natural, stamp


def last_words(snapshot: Snapshot, jobs: Sequence[str]) -> list[LastWords]:
    """Return what each rank of some jobs wrote last, who fell silent first in front."""
    by_rank: dict[tuple[str, str], list[LogLine]] = {}
    for line in snapshot.words:
        job, rank = line.labels.get("job_id", ""), line.rank
        if job in jobs:
            by_rank.setdefault((job, rank), []).append(line)
    ends = {key: max(line.time for line in lines) for key, lines in by_rank.items()}
    latest = {job: max(end for (whose, _), end in ends.items() if whose == job) for job in {job for job, _ in ends}}
    return [
        LastWords(
            job=job,
            rank=rank,
            node=next((line.labels["node"] for line in by_rank[job, rank] if "node" in line.labels), ""),
            at=stamp(ends[job, rank]),
            silent_seconds=round(latest[job] - ends[job, rank], 3),
            lines=[Quote(stamp(line.time), line.text, line.file, rank) for line in by_rank[job, rank]],
        )
        for job, rank in sorted(by_rank, key=lambda key: (key[0], ends[key], natural(key[1])))
    ]
