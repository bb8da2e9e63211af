"""vLLM's OpenAI server as a process, for tests."""
import json
import os
import pathlib
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request

from engines import PATIENCE_S, EngineFailed, environment


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Server:
    """A context: one replica on a port of its own. vLLM's command needs the distribution vllm, so the module is started."""

    def __init__(self, model, folder, name, kv=None, environ=None):
        self.log, self.port = pathlib.Path(folder) / f"{name}.log", free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", model, "--served-model-name", "small",
                   "--skip-tokenizer-init", "--dtype", "float32", "--seed", "0", "--enforce-eager", "--max-model-len", "4096",
                   "--host", "127.0.0.1", "--port", str(self.port), "--enable-prompt-tokens-details"]
        if kv is not None:
            command += ["--kv-transfer-config", json.dumps(kv)]
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True,
                                            env={**environment(folder), **(environ or {})})

    def wait_ready(self):
        deadline = time.monotonic() + PATIENCE_S
        while True:
            try:
                with urllib.request.urlopen(self.url + "/health", timeout=10):
                    return self
            except OSError:
                if self.process.poll() is not None or time.monotonic() > deadline:
                    raise EngineFailed("the server did not start:\n" + self.log.read_text(errors="replace")[-6000:]) from None
                time.sleep(0.2)

    def complete(self, prompt, n):
        """The tokens of the answer, and how many tokens of the prompt were cached."""
        body = {"model": "small", "prompt": prompt, "max_tokens": n, "temperature": 0, "ignore_eos": True,
                "return_token_ids": True, "detokenize": False}
        request = urllib.request.Request(self.url + "/v1/completions", json.dumps(body).encode(),
                                         {"Content-Type": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:
                found = json.load(answer)
        except urllib.error.HTTPError as error:
            raise EngineFailed(error.read().decode(errors="replace")) from None
        details = found["usage"].get("prompt_tokens_details") or {}
        return found["choices"][0]["token_ids"], details.get("cached_tokens") or 0

    def __enter__(self):
        return self

    def __exit__(self, *_):
        """vLLM's server ends the processes that it has begun when it is told to end."""
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(60)
            except subprocess.TimeoutExpired:
                pass
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self.process.wait()
