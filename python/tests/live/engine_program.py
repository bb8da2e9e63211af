"""A vLLM engine as a process that computes: engine_program.py OPTIONS, with options of vllm.LLM as JSON.

Reads a request a line on its standard input, each a JSON object with "do", and writes an answer a line to the descriptor that
MARU_LIVE_ANSWERS names. Its standard output is vLLM's log.
"""
import json
import os
import sys
import threading
import time

answers = os.fdopen(int(os.environ["MARU_LIVE_ANSWERS"]), "w", buffering=1)
writing = threading.Lock()


def say(**answer):
    with writing:
        answers.write(json.dumps(answer) + "\n")


def worker_connector():
    from vllm.distributed.kv_transfer import get_kv_transfer_group, has_kv_transfer_group
    return get_kv_transfer_group() if has_kv_transfer_group() else None


def hide_llvmlite_from_vllm():
    """vLLM 0.32 looks for kernels in all that modules have, and takes each __dict__ for a dict. llvmlite, which LMCache brings
    along, has an object with a function of every name, also of this one."""
    from llvmlite.binding import ffi
    function_of = ffi._lib_wrapper.__getattr__

    def function_without_underscores(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return function_of(self, name)

    ffi._lib_wrapper.__getattr__ = function_without_underscores


class Engine:
    def __init__(self, options):
        if (options.get("kv_transfer_config") or {}).get("kv_connector", "").startswith("LMCache"):
            hide_llvmlite_from_vllm()
        from vllm import LLM
        self.llm = LLM(**options)
        self._answered = 0.0  # time of processors when the last answer was complete

    def generate(self, prompts, tokens=8, together=True, loras=None):
        """The answers to prompts, each a list of token ids; together: in one batch. loras: for each prompt a name, a number and
        a folder, or None."""
        from vllm import SamplingParams
        asked = SamplingParams(temperature=0.0, max_tokens=tokens, ignore_eos=True, detokenize=False)
        begun = time.perf_counter()
        cpu = time.process_time()
        outputs = []
        from vllm.lora.request import LoRARequest
        wanted = [lora and LoRARequest(*lora) for lora in loras or [None] * len(prompts)]
        for batch in [range(len(prompts))] if together else [[i] for i in range(len(prompts))]:
            outputs += self.llm.generate([{"prompt_token_ids": prompts[i]} for i in batch], asked, use_tqdm=False,
                                         lora_request=[wanted[i] for i in batch] if loras else None)
        seconds, self._answered = time.perf_counter() - begun, time.process_time()
        return {"seconds": seconds, "processor_seconds": self._answered - cpu,
                "tokens": [list(output.outputs[0].token_ids) for output in outputs],
                "cached": [output.num_cached_tokens or 0 for output in outputs]}

    def settle(self):
        """Until what was to be stored is in the pool; known: whether the connector can say so. processor_seconds: since the
        last answer."""
        connector = worker_connector()
        known = hasattr(connector, "wait_until_stored")
        if known:
            connector.wait_until_stored()
        return {"known": known or connector is None, "processor_seconds": time.process_time() - self._answered}

    def forget(self, connector=False):
        """Empties vLLM's prefix cache; connector: and has the connector forget, too."""
        return {"done": self.llm.reset_prefix_cache(reset_connector=connector)}

    def count(self, name):
        """A counter of vLLM's."""
        found = [metric for metric in self.llm.get_metrics() if metric.name == name]
        return {"value": sum(metric.value for metric in found), "found": bool(found)}

    def spent(self):
        """What bench/measured_connectors.py has noted since it was asked last."""
        import measured_connectors
        noted = dict(measured_connectors.spent)
        measured_connectors.spent.clear()
        return {"spent": noted}

    def layers(self):
        """The shapes and strides of the KV cache."""
        cache = worker_connector()._vllm_config.compilation_config.static_forward_context
        return {"layers": [[name, list(layer.kv_cache.shape), list(layer.kv_cache.stride())]
                           for name, layer in cache.items() if hasattr(layer, "kv_cache")]}


def main():
    options = json.loads(sys.argv[1])
    engine = Engine(options)
    say(ready=True)
    for line in sys.stdin:
        request = json.loads(line)
        what = request.pop("do")
        if what == "end":
            break
        try:
            say(**getattr(engine, what)(**request))
        except Exception as error:  # the test has it, and the log the rest
            import traceback
            traceback.print_exc()
            say(error=f"{type(error).__name__}: {error}")
    say(ended=True)


if __name__ == "__main__":
    main()
