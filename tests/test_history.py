"""What was ill before is likelier to be ill again."""

from read_once import load
from synthetic import Job
from test_diagnose import heat, probability

from rca.diagnose import diagnose


def test_each_earlier_incident_of_a_cause_in_a_place_makes_it_likelier_there() -> None:
    library, job = load(), Job()
    heat(job, 10, work=1.0)
    snapshot = job.snapshot(library)
    cause = diagnose(library, snapshot).causes[0]
    shares = [
        probability(diagnose(library, snapshot, (), {(cause.cause, place): times}), cause.cause)
        for place, times in (("gpu node=other gpu=0", 3), (str(cause.entity), 1), (str(cause.entity), 2))
    ]
    assert cause.probability == shares[0] < shares[1] < shares[2]
