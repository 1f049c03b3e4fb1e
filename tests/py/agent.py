"""The line protocol that every foreign client speaks with the tests.

One JSON object per line on stdin names an operation in `do`; one JSON object per line on stdout
answers it: `{"ok": {...}}`, or `{"error": "..."}` when the client itself failed. What a broker
refuses is an answer, not an error. The end of stdin ends the client.

Bytes travel as text when they are UTF-8, else as `{"hex": "..."}`.
"""

import json
import sys
import traceback


def to_bytes(value):
    """Bytes of a JSON value as the tests write it."""
    if isinstance(value, dict) and "hex" in value:
        return bytes.fromhex(value["hex"])
    if isinstance(value, str):
        return value.encode("utf-8")
    raise ValueError(f"neither text nor hex: {value!r}")


def from_bytes(data):
    """A JSON value for bytes: text where they are UTF-8, else hex."""
    try:
        return bytes(data).decode("utf-8")
    except UnicodeDecodeError:
        return {"hex": bytes(data).hex()}


def say(value):
    """Writes one line that the test reads."""
    sys.stdout.write(json.dumps(value, ensure_ascii=False) + "\n")
    sys.stdout.flush()


def serve(handler):
    """Calls `handler.do_<name>(**arguments)` for each line until stdin ends."""
    sys.stdin.reconfigure(encoding="utf-8")
    sys.stdout.reconfigure(encoding="utf-8")
    for line in sys.stdin:
        request = json.loads(line)
        operation = request.pop("do")
        try:
            say({"ok": getattr(handler, "do_" + operation)(**request) or {}})
        except Exception as error:  # the test decides what a failed operation means
            traceback.print_exc()
            say({"error": f"{operation}: {type(error).__name__}: {error}"})
