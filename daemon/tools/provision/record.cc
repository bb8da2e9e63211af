#include "daemon/tools/provision/record.h"

#include <cerrno>
#include <cstdio>
#include <fcntl.h>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <sys/file.h>
#include <sys/stat.h>

namespace maru::daemon::provision {
namespace {

const char* name_of(WishKind kind) {
  return kind == WishKind::kNamespace ? "namespace" : kind == WishKind::kDevice ? "device" : "cxl-region";
}

void make_folder(const std::string& path) { ::mkdir(path.substr(0, path.find_last_of('/')).c_str(), 0755); }

void forget(std::vector<Made>& made, const std::string& name) {
  std::erase_if(made, [&](const Made& one) { return one.name == name; });
}

uint64_t start_of(const std::string& device, const Machine& machine) {
  const DaxDeviceFacts* found = find_named(machine.dax_devices, device);
  return found ? found->start : 0;
}

}  // namespace

Result<std::vector<Made>> read_record(const std::string& path) {
  std::ifstream file(path);
  if (!file) {
    if (errno == ENOENT) return std::vector<Made>{};
    return failure(errno, "read " + path);
  }
  std::ostringstream text;
  text << file.rdbuf();
  const auto json = nlohmann::json::parse(text.str(), nullptr, false);
  std::vector<Made> out;
  if (!json.is_object() || !json.contains("made") || !json["made"].is_array())
    return failure(EINVAL, "read " + path +
                               ": found no record of marud-provision, expected {\"made\": [...]}; remove the file, "
                               "and tables without a label are matched by size");
  for (const auto& one : json["made"]) {
    if (!one.is_object()) continue;
    Made made;
    made.wish = one.value("table", "");
    made.name = one.value("name", "");
    made.start = one.value("start", uint64_t(0));
    made.is_unfinished = one.value("unfinished", false);
    const std::string kind = one.value("kind", "");
    made.kind = kind == "namespace"    ? WishKind::kNamespace
                : kind == "cxl-region" ? WishKind::kCxlRegion
                                       : WishKind::kDevice;
    if (!made.wish.empty() && !made.name.empty()) out.push_back(made);
  }
  return out;
}

Result<void> write_record(const std::string& path, const std::vector<Made>& made) {
  nlohmann::json all = nlohmann::json::array();
  for (const Made& one : made) {
    all.push_back({{"table", one.wish}, {"kind", name_of(one.kind)}, {"name", one.name}, {"start", one.start}});
    if (one.is_unfinished) all.back()["unfinished"] = true;
  }
  make_folder(path);
  const std::string next = path + ".next";
  std::ofstream file(next, std::ios::trunc);
  file << nlohmann::json({{"made", all}}).dump(2) << "\n";
  file.close();
  if (!file || std::rename(next.c_str(), path.c_str()) != 0) return failure(errno ? errno : EIO, "write " + path);
  return {};
}

Result<FileDescriptor> lock_record(const std::string& path) {
  make_folder(path);
  FileDescriptor fd(::open((path + ".lock").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  if (!fd.is_open()) return failure(errno, "open " + path + ".lock");
  if (::flock(fd.get(), LOCK_EX | LOCK_NB) != 0)
    return failure(
        EBUSY,
        "change this machine: found another marud-provision at work, expected none; try again when it has ended");
  return fd;
}

std::vector<Made> after(std::vector<Made> made, const ApplyOutcome& outcome, const Machine& machine) {
  std::vector<Made> put_back;
  for (const Done& one : outcome.put_back) {
    for (const Made& was : made)
      if (was.kind == WishKind::kDevice && was.name == one.step.target && was.start == one.step.start)
        put_back.push_back({was.wish, was.kind, one.name, start_of(one.name, machine)});
    forget(made, one.step.target);
  }
  const auto add = [&](const Done& one, WishKind kind, bool is_unfinished) {
    if (kind == WishKind::kDevice) forget(made, one.name);
    made.push_back(
        {one.step.wish, kind, one.name, kind == WishKind::kDevice ? start_of(one.name, machine) : 0, is_unfinished});
  };
  const auto add_made = [&](const Done& one, bool is_unfinished) {
    if (one.step.kind == Step::Kind::kMakeCxlRegion) add(one, WishKind::kCxlRegion, is_unfinished);
    if (one.step.kind == Step::Kind::kMakeNamespace) add(one, WishKind::kNamespace, is_unfinished);
    if (one.step.kind == Step::Kind::kMakeDevice) add(one, WishKind::kDevice, is_unfinished);
  };
  for (const Done& one : outcome.done) {
    switch (one.step.kind) {
      case Step::Kind::kMakeCxlRegion:
      case Step::Kind::kMakeNamespace:
      case Step::Kind::kMakeDevice: add_made(one, false); break;
      case Step::Kind::kRemoveCxlRegion:
      case Step::Kind::kRemoveNamespace:
      case Step::Kind::kRemoveDevice: forget(made, one.name); break;
      default: break;
    }
  }
  for (const Made& one : put_back) {
    forget(made, one.name);
    made.push_back(one);
  }
  for (const Done& one : outcome.unfinished) add_made(one, true);
  return made;
}

}  // namespace maru::daemon::provision
