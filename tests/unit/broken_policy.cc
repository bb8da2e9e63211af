// Shared objects that are no policy, for loaded_policy_test: of another version, with a function missing, or that refuse.
#include "maru/policy.h"

#if BROKEN_POLICY == 1
extern "C" __attribute__((visibility("default"))) const uint32_t maru_policy_abi = maru::kPolicyAbi + 1;
#elif BROKEN_POLICY == 2 || BROKEN_POLICY == 3
extern "C" __attribute__((visibility("default"))) const uint32_t maru_policy_abi = maru::kPolicyAbi;
#endif
#if BROKEN_POLICY == 1 || BROKEN_POLICY == 3
extern "C" __attribute__((visibility("default"))) maru::Policy* maru_policy_create(const maru::PolicyOption*, size_t,
                                                                                   char* problem,
                                                                                   size_t problem_bytes) {
  for (size_t i = 0; i < problem_bytes; ++i) problem[i] = 'x';  // without an end
  return nullptr;
}
#endif
