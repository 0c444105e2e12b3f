"""Training logs of Megatron-LM and its forks, DeepSpeed, NeMo, torchtitan, Hugging Face Trainer, Lightning, JSON lines."""

from rca.parsers.reader import Reader, new_strainer
from rca.parsers.record import Record

__all__ = ["Reader", "Record", "new_strainer"]
