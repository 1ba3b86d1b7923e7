"""What a process inside a sandbox gives up for good: its user, its privileges, system calls that no program needs.

Runs inside (see `sandbox_source`): the standard library alone. Each step is tried, and may fail where a kernel lacks
it; whether what remains is good enough is judged from outside, by trying (`sandbox_probe`).
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import platform
import resource
import signal
import struct

_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE, _PR_SET_SECCOMP = 1, 4, 22
_PR_SET_CHILD_SUBREAPER, _PR_SET_NO_NEW_PRIVS = 36, 38
_PR_CAPBSET_DROP, _PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL, _SECCOMP_MODE_FILTER = 24, 47, 4, 2
_CAPABILITY_VERSION = 0x20080522
_AUDIT_ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_X32 = 0x40000000  # system calls of the x32 ABI, which would go round the numbers below
_NEW_NAMESPACES = 0x7E020080  # CLONE_NEW* of clone(2)
_DENIED = {  # name: (x86_64, aarch64)
    # the network, also where it knows no namespaces; memory that no limit counts
    "socket": (41, 198), "setsockopt": (54, 208), "vmsplice": (278, 75), "memfd_create": (319, 279),
    "memfd_secret": (447, 447), "shmget": (29, 194), "semget": (64, 190), "msgget": (68, 186), "mq_open": (240, 180),
    # other processes
    "ptrace": (101, 117), "process_vm_readv": (310, 270), "process_vm_writev": (311, 271), "kcmp": (312, 272),
    "pidfd_getfd": (438, 438), "process_madvise": (440, 440),
    # namespaces and mounts
    "unshare": (272, 97), "setns": (308, 268), "mount": (165, 40), "umount2": (166, 39), "pivot_root": (155, 41),
    "chroot": (161, 51), "open_tree": (428, 428), "move_mount": (429, 429), "fsopen": (430, 430),
    "fsmount": (432, 432), "fspick": (433, 433), "mount_setattr": (442, 442), "name_to_handle_at": (303, 264),
    "open_by_handle_at": (304, 265),
    # parts of the kernel that are large and rarely needed
    "bpf": (321, 280), "perf_event_open": (298, 241), "userfaultfd": (323, 282), "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426), "io_uring_register": (427, 427), "add_key": (248, 217), "request_key": (249, 218),
    "keyctl": (250, 219), "kexec_load": (246, 104), "init_module": (175, 105), "finit_module": (313, 273),
    "delete_module": (176, 106), "syslog": (103, 116), "quotactl": (179, 60), "acct": (163, 89),
    "io_setup": (206, 0),  # of these there is a number for the whole machine
    "fanotify_init": (300, 262), "clock_settime": (227, 112), "settimeofday": (164, 170), "reboot": (169, 142),
}  # fmt: skip
_CLONE, _CLONE3, _PRLIMIT = (56, 220), (435, 435), (302, 261)
_ALLOW, _KILL, _EPERM, _ENOSYS = 0x7FFF0000, 0x80000000, 0x00050001, 0x00050026
_LOAD, _JUMP_EQUAL, _JUMP_AT_LEAST, _JUMP_ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_NUMBER, _ARCHITECTURE, _ARGUMENT = 0, 4, 16  # offsets in struct seccomp_data; the low half of the first argument


def confine(user: int | None) -> list[str]:
    """Gives up privileges of this process and all that it starts; the steps that worked.

    Args:
        user: user and group to become; None stays who it is.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    done = []
    if user is not None:
        os.setgroups([])
        os.setresgid(user, user, user)
        os.setresuid(user, user, user)
        done.append("user")
    if _drop_capabilities(libc):
        done.append("capabilities")
    for name, arguments in (
        ("dies_with_parent", (_PR_SET_PDEATHSIG, signal.SIGKILL)),
        ("reaps", (_PR_SET_CHILD_SUBREAPER, 1)),
        ("no_new_privileges", (_PR_SET_NO_NEW_PRIVS, 1)),
        ("no_debugging", (_PR_SET_DUMPABLE, 0)),  # its memory and descriptors in /proc are root's, not its children's
    ):
        if libc.prctl(*(ctypes.c_ulong(value) for value in (*arguments, 0, 0, 0)[:5])) == 0:
            done.append(name)
    if _filter_system_calls(libc):
        done.append("system_calls")
    return done


def _drop_capabilities(libc: ctypes.CDLL) -> bool:
    for capability in range(64):
        if libc.prctl(_PR_CAPBSET_DROP, ctypes.c_ulong(capability), 0, 0, 0) != 0:
            break  # there is none of that number, or nothing is left to drop with
    libc.prctl(_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0)
    head, none = struct.pack("II", _CAPABILITY_VERSION, 0), bytes(24)
    return libc.capset(ctypes.create_string_buffer(head, len(head)), ctypes.create_string_buffer(none, len(none))) == 0


def debuggable() -> None:
    """Gives a child its own /proc/self back, without which /dev/stdin cannot be opened."""
    ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 1, 0, 0, 0)


def _filter_system_calls(libc: ctypes.CDLL) -> bool:
    machine = platform.machine()
    if machine not in _AUDIT_ARCH:
        return False
    code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *one) for one in _instructions(machine)))
    program = ctypes.create_string_buffer(struct.pack("HP", (len(code) - 1) // 8, ctypes.addressof(code)))
    return libc.prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, program, 0, 0) == 0


def _instructions(machine: str) -> list[tuple[int, int, int, int]]:
    """A classic BPF program: (operation, jump where true, jump where false, value)."""
    column = list(_AUDIT_ARCH).index(machine)
    code = [
        (_LOAD, 0, 0, _ARCHITECTURE),
        (_JUMP_EQUAL, 1, 0, _AUDIT_ARCH[machine]),
        (_RETURN, 0, 0, _KILL),
        (_LOAD, 0, 0, _NUMBER),
    ]
    if machine == "x86_64":
        code += [(_JUMP_AT_LEAST, 0, 1, _X32), (_RETURN, 0, 0, _EPERM)]
    for numbers in _DENIED.values():
        code += [(_JUMP_EQUAL, 0, 1, numbers[column]), (_RETURN, 0, 0, _EPERM)]
    code += [
        (_JUMP_EQUAL, 0, 1, _CLONE3[column]),  # its flags lie where no filter can read them; libc falls back to clone
        (_RETURN, 0, 0, _ENOSYS),
        (_JUMP_EQUAL, 0, 4, _CLONE[column]),
        (_LOAD, 0, 0, _ARGUMENT),
        (_JUMP_ANY_BIT, 0, 1, _NEW_NAMESPACES),
        (_RETURN, 0, 0, _EPERM),
        (_RETURN, 0, 0, _ALLOW),
        (_JUMP_EQUAL, 0, 4, _PRLIMIT[column]),  # for oneself alone, never for others
        (_LOAD, 0, 0, _ARGUMENT),
        (_JUMP_EQUAL, 1, 0, 0),
        (_RETURN, 0, 0, _EPERM),
        (_RETURN, 0, 0, _ALLOW),
        (_RETURN, 0, 0, _ALLOW),
    ]
    return code


def limit(cpu_s: int, memory: int, file_bytes: int, processes: int | None) -> None:
    """Limits of this process and those it starts, for good: nothing raises a hard limit again.

    Args:
        cpu_s: CPU time in s of each process; the kernel warns at this time and kills a second later.
        memory: bytes of address space of each process.
        file_bytes: bytes of each file written.
        processes: processes and threads of this user; None sets no limit.
    """
    wanted = {
        resource.RLIMIT_CPU: (cpu_s, cpu_s + 1),
        resource.RLIMIT_AS: (memory, memory),
        resource.RLIMIT_FSIZE: (file_bytes, file_bytes),
        resource.RLIMIT_NOFILE: (128, 128),
        resource.RLIMIT_CORE: (0, 0),
        resource.RLIMIT_STACK: (100 << 20, 100 << 20),  # deep recursion through C; beyond lies no room in the layout
        resource.RLIMIT_MSGQUEUE: (0, 0),
        resource.RLIMIT_MEMLOCK: (0, 0),
    }
    if processes is not None:
        wanted[resource.RLIMIT_NPROC] = (processes, processes)
    for kind, (soft, hard) in wanted.items():
        _, allowed = resource.getrlimit(kind)
        most = hard if allowed == resource.RLIM_INFINITY else min(hard, allowed)
        with contextlib.suppress(ValueError, OSError):  # what cannot be lowered is found out by trying
            resource.setrlimit(kind, (min(soft, most), most))
