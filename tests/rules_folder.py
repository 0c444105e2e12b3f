"""A small folder of rules, for tests that bend one file of it."""

from pathlib import Path

ENTITIES = """\
kinds:
  gpu: {labels: [node, gpu], columns: [job, rank, model, tp, pp, dp], summary: a GPU}
  rank: {labels: [job, rank], columns: [node, gpu, tp, pp, dp], summary: a process}
  job: {labels: [job], summary: a job}
relations:
  job: {labels: [job], summary: the same job}
  gpu: {labels: [node, gpu], summary: the same GPU}
labels:
  node: {aliases: [node]}
  gpu: {aliases: [gpu]}
"""
SIGNALS = """\
heat: {summary: Temperature, entity: gpu, layer: physical, unit: celsius, queries: [DCGM_FI_DEV_GPU_TEMP]}
step: {summary: Step time, entity: rank, layer: training, unit: seconds, queries: [train_step]}
"""
HOT = """\
summary: A GPU is hot
entity: gpu
role: root
when: {signal: heat, is: above, limit: 90}
causes: [{effect: slow, via: job, strength: 0.9}]
prior: {slow_onset: 0.02}
action: {do: drain, text: Check the fans.}
runbook: docs/runbooks/hot.md
"""
SLOW = """\
summary: The job is slow
entity: job
role: symptom
when: {signal: step, is: above_baseline, by: 10%, reduce: median}
symptom: slow_onset
"""


def write(root: Path, name: str, text: str) -> Path:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path
