// Tenants in requests and replies of administrators. Names are text, or 0x and hexadecimal digits, as keys are.
//
// Cost: memory of marud's own.
#pragma once

#include "daemon/pool/tenants/pool_tenants.h"

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

namespace maru::daemon {

// The tenant that "tenant" of a request about blocks means; 0, blocks of no tenant, where the field is absent. The
// field is a name; or "id:" and the number that marud shows; or that number alone, unless a tenant of the table has it
// as its name. Nothing: it is none of these.
std::optional<uint64_t> tenant_in(const PoolTenants& tenants, const nlohmann::json& request);
// Puts a tenant into a row about a block: "tenant", its number, and "tenant_name" where marud knows it.
void put_tenant(const PoolTenants& tenants, uint64_t id, nlohmann::json& row);

// The tenant that "tenant", a name, or "id" of a request about limits means; 0 if the table does not have it. The name is empty
// where marud does not know it. ret_refusal stays null unless the request names no tenant.
uint32_t tenant_named(const PoolTenants& tenants, const nlohmann::json& request, std::string* ret_name,
                      nlohmann::json* ret_refusal);

nlohmann::json name_json(const std::string& name);                       // null: not known
nlohmann::json tenant_json(const PoolTenants& tenants, uint32_t index);  // a tenant's limits and usage
nlohmann::json default_limits_json(const PoolTenants& tenants);          // of tenants without limits of their own
nlohmann::json mode_json(const PoolTenants& tenants);                    // whether other tenants may store
// "quota.list": as many rows as one reply has room for, and "next".
nlohmann::json list_tenants(const PoolTenants& tenants, const nlohmann::json& request);
// For "status". `no_tenant_bytes`: the bytes of blocks without a tenant, which no account counts.
nlohmann::json tenants_status(const PoolTenants& tenants, uint64_t no_tenant_bytes);

}  // namespace maru::daemon
