"""The protocol buffers that trackers write, as far as they are read: field numbers out of their published schemas.

TensorBoard: tensorflow's `event.proto`, `summary.proto` and `tensor.proto`. W&B: `wandb_internal.proto`. What is not
named here is skipped by the decoder, so new fields do no harm.
"""

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import Message

_TYPES = {
    "double": 1,
    "float": 2,
    "int64": 3,
    "uint64": 4,
    "int32": 5,
    "bool": 8,
    "string": 9,
    "bytes": 12,
    "enum": 5,
    "sint64": 18,
}
_SCHEMA = {
    "Event": "wall_time:double=1 step:int64=2 file_version:string=3 summary:Summary=5",
    "Summary": "*value:Value=1",
    "Value": "tag:string=1 simple_value:float=2 tensor:Tensor=8",
    "Tensor": "dtype:int32=1 content:bytes=4 *float_val:float=5 *double_val:double=6 *int_val:int32=7 *int64_val:int64=10",
    "Record": "history:History=2 stats:Stats=7 run:RunRecord=17 environment:Environment=26",
    "History": "*item:Item=1 step:Step=2",
    "Item": (
        "key:string=1 *nested_key:string=2 boolean:bool=4 integer:sint64=5 number:double=6 text:string=7 json:string=8 "
        "value_json:string=16"
    ),
    "Step": "num:int64=1",
    "Stats": "timestamp:Timestamp=2 *item:Item=3",
    "Timestamp": "seconds:int64=1 nanos:int32=2",
    "RunRecord": "run_id:string=1 project:string=3 display_name:string=8 host:string=13 start_time:Timestamp=17",
    "Environment": "host:string=12",
}


def _declared() -> descriptor_pb2.FileDescriptorProto:
    """Declare the messages; proto2, where a number that is there differs from one that is not."""
    file = descriptor_pb2.FileDescriptorProto(name="rca/trackers.proto", package="rca")
    for name, fields in _SCHEMA.items():
        message = file.message_type.add(name=name)
        for text in fields.split():
            field, _, number = text.partition("=")
            field, _, kind = field.partition(":")
            label = 3 if field.startswith("*") else 1
            told = {"type": _TYPES[kind]} if kind in _TYPES else {"type": 11, "type_name": f".rca.{kind}"}
            message.field.add(name=field.lstrip("*"), number=int(number), label=label, **told)
    return file


_POOL = descriptor_pool.DescriptorPool()
_POOL.Add(_declared())


def message(name: str) -> type[Message]:
    """Return the class of a message.

    >>> message("Event").FromString(bytes([9, 0, 0, 0, 0, 0, 0, 248, 63, 16, 7])).step
    7
    """
    made: type[Message] = message_factory.GetMessageClass(_POOL.FindMessageTypeByName(f"rca.{name}"))
    return made
