"""Engines as processes, for tests and benchmarks: begins them, asks them, ends them."""
import json
import os
import pathlib
import select
import signal
import subprocess
import sys
import time

PATIENCE_S = 600  # for whatever an engine does; a machine may be slow, and may do other work
HERE = pathlib.Path(__file__).resolve().parent
QUIET = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1",
         "LMCACHE_TRACK_USAGE": "false", "TOKENIZERS_PARALLELISM": "false",
         "OMP_NUM_THREADS": os.environ.get("MARU_LIVE_THREADS", "1")}


def until(holds, what):
    deadline = time.monotonic() + PATIENCE_S
    while not (found := holds()):
        assert time.monotonic() < deadline, what
        time.sleep(0.05)
    return found


class EngineFailed(Exception):
    pass


def transfer(socket, *, pool="default", module="maru.vllm", connector="MaruConnector", role="kv_both", **extra):
    """kv_transfer_config of an engine."""
    return {"kv_connector": connector, "kv_connector_module_path": module, "kv_role": role,
            "kv_load_failure_policy": "recompute",
            "kv_connector_extra_config": {"maru_socket": str(socket), "maru_pool": pool, "maru_timeout_ms": 60_000, **extra}}


def environment(folder, kv_gib=1):
    """For a process with vLLM. folder: for what it would otherwise keep in the user's folders."""
    path = os.pathsep.join([str(HERE), *filter(None, [os.environ.get("PYTHONPATH")])])
    return {**os.environ, **QUIET, "VLLM_CPU_KVCACHE_SPACE": str(kv_gib), "VLLM_CPU_OMP_THREADS_BIND": "nobind",
            "VLLM_CACHE_ROOT": str(folder), "XDG_CACHE_HOME": str(folder), "PYTHONPATH": path}


class Engine:
    """A context. Every call but send() waits for the engine."""

    def __init__(self, model, folder, name, kv=None, dtype="float32", kv_gib=1, environ=None, **options):
        """kv: kv_transfer_config. folder: for its log, and for what it caches."""
        self.log = pathlib.Path(folder) / f"{name}.log"
        options = {"model": model, "tokenizer": model, "skip_tokenizer_init": True, "dtype": dtype, "seed": 0,
                   "enforce_eager": True, "max_model_len": 4096, "max_num_batched_tokens": 2048, "disable_log_stats": False,
                   **options}
        if kv is not None:
            options["kv_transfer_config"] = kv
        reading, writing = os.pipe()
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, HERE / "engine_program.py", json.dumps(options)], stdin=subprocess.PIPE, stdout=log,
                stderr=log, pass_fds=[writing], start_new_session=True,
                env={**environment(folder, kv_gib), "VLLM_ENABLE_V1_MULTIPROCESSING": "0", "MARU_LIVE_ANSWERS": str(writing),
                     **(environ or {})})
        os.close(writing)
        self._answers, self._read = reading, b""
        self._is_ready = False

    def wait_ready(self):
        if not self._is_ready:
            assert self.reply() == {"ready": True}
            self._is_ready = True
        return self

    def send(self, do, **what):
        self.wait_ready()
        self.process.stdin.write(json.dumps({"do": do, **what}).encode() + b"\n")
        self.process.stdin.flush()

    def reply(self):
        """The next line that the engine writes."""
        deadline = time.monotonic() + PATIENCE_S
        while b"\n" not in self._read:
            ready, _, _ = select.select([self._answers], [], [], max(0, deadline - time.monotonic()))
            more = os.read(self._answers, 1 << 20) if ready else b""
            if not more:
                raise EngineFailed(f"the engine {'is gone' if ready else 'does not answer'}:\n{self.log_end()}")
            self._read += more
        line, _, self._read = self._read.partition(b"\n")
        answer = json.loads(line)
        if "error" in answer:
            raise EngineFailed(f"{answer['error']}\n{self.log_end()}")
        return answer

    def ask(self, do, **what):
        self.send(do, **what)
        return self.reply()

    def log_end(self):
        return self.log.read_text(errors="replace")[-6000:]

    def answers(self, prompts, tokens=8, **how):
        return self.ask("generate", prompts=prompts, tokens=tokens, **how)

    def kill(self):
        """At once, with all that it has started."""
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self.process.wait()

    def end(self):
        if self.process.poll() is None and self._is_ready:
            try:
                self.process.stdin.write(b'{"do": "end"}\n')
                self.process.stdin.close()
                self.process.wait(60)
            except (OSError, subprocess.TimeoutExpired):
                pass
        self.kill()
        if self._answers is not None:
            os.close(self._answers)
            self._answers = None

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.end()
