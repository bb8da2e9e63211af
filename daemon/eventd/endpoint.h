// Addresses of ZeroMQ sockets, as a configuration has them.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace maru::eventd {

// "tcp://HOST:PORT", with * for HOST or PORT only when one listens there; "ipc:///absolute/path". What is wrong with it, as
// what is expected instead; empty: nothing.
std::string endpoint_mistake(std::string_view endpoint, bool listens);

// The topics that a template means: "{pod}" stands for each of the pods, and "{model}" for the model. What is wrong is appended
// to `mistakes`.
std::vector<std::string> topics_of(const std::string& text, const std::vector<std::string>& pods,
                                   const std::string& model, std::vector<std::string>& mistakes);

}  // namespace maru::eventd
