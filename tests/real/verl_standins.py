"""What verl imports and these tests do not use, as empty modules, and its queue as a dict. Imported before verl."""

import sys
import types

import datasets  # noqa: F401 - looks for the packages below, before they are stood in for
import torch
from tensordict import NonTensorStack, TensorDict
from transformers import MistralForSequenceClassification  # noqa: F401 - likewise

ANYTHING = {
    "PIL": {},
    "PIL.Image": {"Image": object},
    "torchdata": {},
    "torchdata.stateful_dataloader": {"StatefulDataLoader": object},
    "cachetools": {"LRUCache": dict},
    "uvicorn": {"Server": object, "Config": object},
    "fastapi": {"FastAPI": object},
    "aiohttp": {"ClientSession": object, "ClientTimeout": object},
}


def stand_in(names):
    for name, contents in names.items():
        sys.modules[name] = types.ModuleType(name)
        vars(sys.modules[name]).update(contents)
        parent, _, child = name.rpartition(".")
        if parent:
            setattr(sys.modules[parent], child, sys.modules[name])


class KVBatchMeta:
    """Which rows of the queue a batch has."""

    def __init__(self, *, keys, tags, partition_id, fields=None, extra_info=None):
        self.keys, self.tags, self.partition_id, self.fields = keys, tags, partition_id, fields
        self.extra_info = extra_info or {}

    def __len__(self):
        return len(self.keys)

    def reorder(self, places):
        self.keys, self.tags = [self.keys[i] for i in places], [self.tags[i] for i in places]


class Queue:
    """A `transfer_queue` of one process: key -> name -> a row's value."""

    def __init__(self):
        self.rows, self.tags = {}, {}

    def kv_batch_put(self, *, keys, partition_id, fields, tags=None):
        self.tags |= dict(zip(keys, tags or [self.tags[key] for key in keys], strict=True))
        for name in fields.keys():  # noqa: SIM118 - a TensorDict
            column = fields[name]
            values = column.unbind() if isinstance(column, torch.Tensor) else list(column)
            for key, value in zip(keys, values, strict=True):
                self.rows.setdefault(key, {})[name] = value
        return KVBatchMeta(keys=keys, tags=[self.tags[key] for key in keys], partition_id=partition_id)

    def kv_batch_get(self, *, keys, partition_id, select_fields=None):
        found = {}
        for name in select_fields or self.rows[keys[0]]:
            values = [self.rows[key].get(name) for key in keys]
            if any(value is None for value in values):
                continue
            tensors = isinstance(values[0], torch.Tensor)
            nested = torch.nested.as_nested_tensor(values, layout=torch.jagged) if tensors else None
            found[name] = nested if tensors else NonTensorStack(*values)
        return TensorDict(found, batch_size=len(keys))

    def kv_clear(self, *, keys, partition_id):
        pass


stand_in(ANYTHING)
queue = Queue()
calls = {name: getattr(queue, name) for name in ("kv_batch_put", "kv_batch_get", "kv_clear")}
stand_in({"transfer_queue": {"KVBatchMeta": KVBatchMeta, **calls}})
