#include "daemon/http/foreign_site.h"

#include "daemon/base/log.h"

#include <algorithm>
#include <arpa/inet.h>

namespace maru::daemon::http {
namespace {

// Without the port. An IPv6 address is in brackets.
std::string_view name_in(std::string_view host) {
  if (host.starts_with('[')) return host.substr(0, host.find(']') + 1);
  return host.substr(0, host.find(':'));
}

// The owner of a DNS name can make it mean this machine. Then the owner's page and marud are one site for a browser.
bool may_be_of_dns(std::string_view name) {
  in_addr address = {};
  if (name.starts_with('[') || ::inet_pton(AF_INET, std::string(name).c_str(), &address) == 1) return false;
  return name.find('.') != std::string_view::npos && !name.ends_with(".localhost");
}

std::string start_in_quotes(std::string_view text) { return "\"" + printable(text.substr(0, 80)) + "\""; }

}  // namespace

std::string foreign_site(std::string_view host, std::string_view origin, std::string_view fetch_site) {
  if (may_be_of_dns(name_in(host)))
    return "found the header Host: " + start_in_quotes(host) + ", expected localhost or an address of this machine";
  if (!origin.empty() && origin != "http://" + std::string(host))
    return "found the header Origin: " + start_in_quotes(origin) + ", expected no page but marud's own";
  if (!fetch_site.empty() && fetch_site != "same-origin" && fetch_site != "none")
    return "found the header Sec-Fetch-Site: " + start_in_quotes(fetch_site) + ", expected no page but marud's own";
  return {};
}

}  // namespace maru::daemon::http
