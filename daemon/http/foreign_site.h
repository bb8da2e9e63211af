// Detects requests that a page of another site made a browser send. On TCP the token stops them. A user may forward the Unix
// socket to a port of a machine with a browser (ssh -L). That port asks for no token, so the browser's own headers decide.
#pragma once

#include <string>
#include <string_view>

namespace maru::daemon::http {

// Says why the request comes from another site's page; empty: it comes from marud's own page or from a program.
// An empty header is absent. The reasons:
//   Host             a name that some DNS server may have chosen, instead of an address or a name without a dot
//   Origin           another origin than the host of the request
//   Sec-Fetch-Site   the browser says that another site asks
std::string foreign_site(std::string_view host, std::string_view origin, std::string_view fetch_site);

}  // namespace maru::daemon::http
