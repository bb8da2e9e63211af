#include "daemon/pool/inspect/bad_memory.h"

#include "daemon/base/json_text.h"
#include "daemon/base/request_fields.h"
#include "daemon/pool/inspect/names.h"
#include "libmaru/shm/blocks/pin.h"

#include <algorithm>
#include <cerrno>
#include <nlohmann/json.hpp>

namespace maru::daemon {
namespace {

using nlohmann::json;

constexpr uint64_t kLinesPerPoisonList = 1u << 18;  // and one page at least

}  // namespace

json BadMemoryCommands::poison_page(const json& request) {
  uint64_t page = number_in(request, "page", ~uint64_t{0});
  if (request.contains("page") == request.contains("key"))
    return refusal(EINVAL, "\"page\" or \"key\", one of them, says which page is bad");
  if (request.contains("key")) {
    shm::Digest digest;
    json none;
    const PageRef ref = blocks_.named(request, &digest, &none);
    if (ref.is_none()) return none;
    page = ref.page();
  }
  if (page >= core_.pages())
    return refusal(ERANGE, "\"page\": found " + json_text(request["page"]) + ", expected 0 to " +
                               std::to_string(core_.pages() - 1) + " (marudctl blocks KEY names the page of a block)");
  const PageWord before = core_.word(uint32_t(page));
  const shm::PoisonStatus status = poison_.poison(uint32_t(page));
  poison_.step();
  return {{"page", page},
          {"was", page_state_name(before.state())},
          {"result", status == shm::PoisonStatus::kPoisoned  ? "poisoned"
                     : status == shm::PoisonStatus::kAlready ? "was poisoned already"
                                                             : "goes as soon as it was published"}};
}

json BadMemoryCommands::list(const json& request) {
  const uint64_t rows_max = rows_in(request);
  json rows = json::array();
  uint64_t page = number_in(request, "cursor", 0);
  const auto add = [&](uint64_t at, const char* state) {
    json row = {{"page", at}, {"state", state}, {"device_byte", core_.device_byte(at)}};
    if (std::string_view(state) == "poisoned") {
      core_.meter.add(lanes_.look_lines());
      row["pinned"] = shm::is_pinned(core_.region, lanes_.in_use, uint32_t(at));
    }
    rows.push_back(std::move(row));
  };
  if (page == 0) {
    for (uint32_t waiting : poison_.waiting()) add(waiting, "waiting");
    for (const Poison::Report& report : poison_.reports()) add(report.page, "reported");
  }
  const uint64_t end = std::max(page, core_.pages());
  const LineBudget lines(core_.meter, kLinesPerPoisonList);
  for (; page < end && !lines.is_spent() && rows.size() < rows_max; ++page)
    if (core_.word(uint32_t(page)).is(PageState::kPoisoned)) add(page, "poisoned");
  json reply = {{"memory", std::move(rows)}};
  if (page < core_.pages()) reply["next"] = page;
  return reply;
}

}  // namespace maru::daemon
