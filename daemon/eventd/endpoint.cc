#include "daemon/eventd/endpoint.h"

#include <algorithm>
#include <charconv>
#include <sys/un.h>

namespace maru::eventd {
namespace {

constexpr size_t kPathMax = sizeof(sockaddr_un::sun_path) - 1;

bool is_port(std::string_view text, bool listens) {
  if (text == "*") return listens;
  uint16_t port = 0;
  const auto read = std::from_chars(text.data(), text.data() + text.size(), port);
  return read.ec == std::errc() && read.ptr == text.data() + text.size() && port > 0;
}

bool replace(std::string& text, std::string_view what, std::string_view by) {
  const size_t place = text.find(what);
  if (place == std::string::npos) return false;
  text.replace(place, what.size(), by);
  return true;
}

}  // namespace

std::string endpoint_mistake(std::string_view endpoint, bool listens) {
  constexpr std::string_view kTcp = "tcp://", kIpc = "ipc://";
  if (endpoint.starts_with(kIpc)) {
    const std::string_view path = endpoint.substr(kIpc.size());
    if (path.starts_with('/') && path.size() <= kPathMax) return "";
    return "an absolute path of at most " + std::to_string(kPathMax) + " bytes behind ipc://";
  }
  if (endpoint.starts_with(kTcp)) {
    const size_t colon = endpoint.rfind(':');
    const std::string_view host = colon < kTcp.size() ? "" : endpoint.substr(kTcp.size(), colon - kTcp.size());
    if (!host.empty() && (listens || host != "*") && is_port(endpoint.substr(colon + 1), listens)) return "";
  }
  return listens
             ? "an endpoint to listen at, such as \"tcp://*:5557\", \"tcp://127.0.0.1:5557\" or \"ipc:///run/x/events\""
             : "an endpoint to connect to, such as \"tcp://host:5557\" or \"ipc:///run/x/events\"";
}

std::vector<std::string> topics_of(const std::string& text, const std::vector<std::string>& pods,
                                   const std::string& model, std::vector<std::string>& mistakes) {
  constexpr std::string_view kPod = "{pod}", kModel = "{model}";
  std::string with_model = text;
  const bool wants_model = replace(with_model, kModel, model);
  if (wants_model == model.empty())
    mistakes.push_back(wants_model ? "model: found nothing, expected the name that stands for {model} in topic"
                                   : "model: found a name, expected {model} in topic, where it stands");
  const bool wants_pods = with_model.find(kPod) != std::string::npos;
  if (wants_pods == pods.empty())
    mistakes.push_back(wants_pods ? "pods: found nothing, expected the names that stand for {pod} in topic, such as "
                                    "[\"10.0.0.1:8000\"]"
                                  : "pods: found names, expected {pod} in topic, where each stands");
  std::vector<std::string> topics;
  for (const std::string& pod : pods) {
    topics.push_back(with_model);
    replace(topics.back(), kPod, pod);
  }
  if (topics.empty()) topics.push_back(with_model);
  for (const std::string& topic : topics)
    if (topic.starts_with("kv@") && std::count(topic.begin(), topic.end(), '@') != 2) {
      mistakes.push_back("topic: found \"" + topic +
                         "\", expected three parts, kv@POD@MODEL, as llm-d reads them: a "
                         "name has no @");
      break;
    }
  return topics;
}

}  // namespace maru::eventd
