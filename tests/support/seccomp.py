"""Seccomp filters for processes that a test starts: those of a container engine's profiles, without an engine."""
import ctypes
import json
import os
import pathlib
import re
import shutil
import struct
import subprocess

PR_SET_SECCOMP, PR_SET_NO_NEW_PRIVS = 22, 38
SECCOMP_MODE_FILTER = 2
LOAD_WORD, JUMP_IF_EQUAL, RETURN = 0x20, 0x15, 0x06  # of linux/bpf_common.h
ALLOW, ERRNO = 0x7FFF0000, 0x00050000
LIBC = ctypes.CDLL(None, use_errno=True)


class Program(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("filter", ctypes.c_void_p)]


def instruction(code, operand, if_true=0, if_false=0):
    return struct.pack("=HBBI", code, if_true, if_false, operand)


def filter_of(decisions, otherwise):
    """`decisions`: the action for each number of a system call."""
    rules = [instruction(JUMP_IF_EQUAL, number, 0, 1) + instruction(RETURN, action) for number, action in decisions.items()]
    return b"".join([instruction(LOAD_WORD, 0), *rules, instruction(RETURN, otherwise)])


def apply(program):
    """For preexec_fn."""
    kept = ctypes.create_string_buffer(program, len(program))
    described = Program(len(program) // 8, ctypes.cast(kept, ctypes.c_void_p))
    if LIBC.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 or \
            LIBC.prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.byref(described), 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl")


def without_io_uring(code):
    io_uring_calls = range(425, 428)  # setup, enter and register, on every architecture
    return filter_of({number: ERRNO | code for number in io_uring_calls}, ALLOW)


def numbers():
    """Of the system calls of this machine, by name, as its headers say; None where there is no compiler to ask."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if not compiler:
        return None
    said = subprocess.run([compiler, "-E", "-dM", "-include", "sys/syscall.h", "-"], input="", capture_output=True, text=True,
                          check=True).stdout
    return {name: int(number) for name, number in re.findall(r"#define __NR_(\w+) (\d+)$", said, re.MULTILINE)}


def of_profile(path):
    """A profile of the OCI that allows what it names; None where that cannot be told."""
    profile, known = json.loads(pathlib.Path(path).read_text()), numbers()
    if known is None:
        return None
    allowed = {known[name] for rule in profile["syscalls"] if rule["action"] == "SCMP_ACT_ALLOW"
               for name in rule["names"] if name in known}
    return filter_of({number: ALLOW for number in sorted(allowed)}, ERRNO | profile["defaultErrnoRet"])


def why_no_filter():
    """Why this machine does not take a filter, or nothing."""
    child = os.fork()
    if child == 0:
        try:
            apply(filter_of({}, ALLOW))
        except OSError:
            os._exit(1)
        os._exit(0)
    return "" if os.waitpid(child, 0)[1] == 0 else "this kernel takes no seccomp filter from this process"
