// Addresses of ZeroMQ sockets, as a configuration has them.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace maru::eventd {

// "tcp://HOST:PORT", with * for HOST or PORT only for a socket that listens; "ipc:///absolute/path". Returns the expected form
// for a wrong endpoint; empty: it is good.
std::string endpoint_mistake(std::string_view endpoint, bool listens);

// The topics of a template: "{pod}" stands for each of the pods, and "{model}" for the model. Mistakes are appended to
// `mistakes`.
std::vector<std::string> topics_of(const std::string& text, const std::vector<std::string>& pods,
                                   const std::string& model, std::vector<std::string>& mistakes);

}  // namespace maru::eventd
