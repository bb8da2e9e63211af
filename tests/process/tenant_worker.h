// The tenants of tests/process/tenant_worker.cc.
#pragma once

#include <cstddef>

namespace maru::test {

inline constexpr size_t kTenantNames = 3;
inline constexpr const char* kTenantNameTexts[kTenantNames] = {"a", "b", "c"};

}  // namespace maru::test
