// Requests that a page of another site made a browser send. On TCP the token stands against them. Whoever forwards the Unix
// socket to a port of a machine with a browser (ssh -L) has no token there, so what browsers say about a request decides.
#pragma once

#include <string>
#include <string_view>

namespace maru::daemon::http {

// Says why a request with these headers (empty: it has none) is none of marud's own page or of a program, or nothing:
//   Host             a name that some DNS server may have chosen, instead of an address or a name without a dot
//   Origin           another one than the host that is asked
//   Sec-Fetch-Site   the browser says that another site asks
std::string foreign_site(std::string_view host, std::string_view origin, std::string_view fetch_site);

}  // namespace maru::daemon::http
