"""Reads the file of an offline wandb run, as far as tests need it.

wandb 0.31 has no reader in Python. The file is seven bytes of its own and then a LevelDB log:
blocks of 32 KiB holding pieces of records, each after checksum, size and type
(github.com/google/leveldb/blob/main/doc/log_format.md).
"""

import json
import struct
import time
from pathlib import Path

from wandb.proto.wandb_internal_pb2 import Record

BLOCK = 32 * 1024
HEADER = struct.Struct("<IHB")
FULL, FIRST, MIDDLE, LAST = 1, 2, 3, 4


def finished_records(folder: Path) -> list[Record]:
    """The records of the only offline run in `folder`; its own process may still be writing."""
    for _ in range(200):
        for path in folder.glob("wandb/offline-run-*/*.wandb"):
            records = read_records(path)
            if any(record.HasField("exit") for record in records):
                return records
        time.sleep(0.05)
    raise AssertionError(f"no finished wandb run in {folder}")


def read_records(path: Path) -> list[Record]:
    """All records of the file, in order."""
    data, place, parts, records = path.read_bytes(), 7, [], []
    assert data[:4] == b":W&B"
    while place < len(data):
        if BLOCK - place % BLOCK < HEADER.size:
            place += BLOCK - place % BLOCK
            continue
        _, size, kind = HEADER.unpack_from(data, place)
        place += HEADER.size
        parts.append(data[place : place + size])
        place += size
        if kind in (FULL, LAST):
            records.append(Record.FromString(b"".join(parts)))
            parts = []
    return records


def history(records: list[Record]) -> dict[int, dict]:
    """Step -> what was logged at it, texts and numbers alike."""
    steps = {}
    for record in records:
        items = {
            "/".join(item.nested_key) or item.key: json.loads(item.value_json)
            for item in record.history.item
        }
        if items:
            steps[items["_step"]] = items
    return steps


def config_of(records: list[Record]) -> dict:
    """The settings given at the start of the run."""
    (run,) = [record.run for record in records if record.HasField("run")]
    return {item.key: json.loads(item.value_json) for item in run.config.update}


def exit_code(records: list[Record]) -> int:
    """What the run was finished with."""
    (code,) = [record.exit.exit_code for record in records if record.HasField("exit")]
    return code
