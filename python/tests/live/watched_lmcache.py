"""LMCache's connector for tests alone: as it is, with one thing done to it. An engine loads it by this module's name."""
import json
import os
import signal

from lmcache.integration.vllm.lmcache_mp_connector import LMCacheMPConnector


class LMCacheStoppingConnector(LMCacheMPConnector):
    """Comes to a call of LMCache's server, says so, and waits there to be killed. MARU_LIVE_STOP names the call: commit_store
    would bring what was computed, prepare_retrieve what the server has found and locked."""

    def register_kv_caches(self, kv_caches):
        super().register_kv_caches(kv_caches)
        call = os.environ["MARU_LIVE_STOP"]

        def stop(*arguments):
            os.write(int(os.environ["MARU_LIVE_ANSWERS"]), json.dumps({"stopped": call}).encode() + b"\n")
            signal.pause()
        setattr(self.worker_adapter.transfer_ctx.engine_driven_context, call, stop)
