"""Children of a `TimedProcess` under test, run as `python -m children_for_tests`."""

import os
import signal
import sys
import time

from rw.scoring import timed


def answer(request):
    match request:
        case {"echo": value}:
            print("this must not come between the replies", flush=True)
            return value
        case {"sleep": seconds}:
            signal.signal(signal.SIGALRM, signal.SIG_IGN)
            while seconds:
                try:
                    time.sleep(seconds)
                except BaseException:  # noqa: BLE001 - the worst guest
                    pass
            return None
        case {"raise": text}:
            raise RuntimeError(text)
        case {"deep": depth}:
            return answer({"deep": depth + 1})
        case {"allocate": size}:
            return len(bytearray(size))
        case {"die": status}:
            os._exit(status)
        case {"spin": _}:
            while True:
                pass
        case {"about": "environment"}:
            return dict(os.environ)
        case {"about": "modules"}:
            return sorted({name.partition(".")[0] for name in sys.modules})
    return os.getpid()


if __name__ == "__main__":
    timed.serve(answer, 1 << 30)
