"""The program with which the interpreter of a slot is started. It reads the modules from its standard input, loads them in order and starts
the zygote.
"""

import json
import os
import struct
import sys
import types


def take(size):
    data = b""
    while len(data) < size:
        part = os.read(0, size - len(data))
        if not part:
            raise SystemExit("the host hung up")
        data += part
    return data


boot = json.loads(take(struct.unpack("<I", take(4))[0]))
for name, source in boot.pop("modules"):
    module = types.ModuleType("rollpacker_" + name)
    sys.modules[module.__name__] = module
    exec(compile(source, "<%s>" % module.__name__, "exec"), module.__dict__)
sys.modules["rollpacker_zygote"].main(boot)
