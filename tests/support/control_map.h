// A control region as a test looks at it: mapped over a connection of its own that takes a lane and nothing else, readable
// and writable like any client's.
#pragma once

#include "libmaru/base/file_descriptor.h"
#include "libmaru/base/mapping.h"
#include "libmaru/shm/audit/audit.h"
#include "libmaru/shm/region/control_region.h"
#include "maru/format/wire.h"

#include <cstdint>
#include <string>
#include <vector>

namespace maru::test {

class ControlMap {
 public:
  explicit ControlMap(const std::string& socket_path, const std::string& pool = "default");

  const shm::ControlRegion& region() const { return region_; }
  const wire::AttachReply& attached() const { return attached_; }
  std::span<std::byte> bytes() const { return control_.bytes(); }
  int device_fd() const { return device_.get(); }  // with the pages, from attached().pages_offset on
  int socket() const { return socket_.get(); }

  // How many pages are in each state; the last counts words that are no state.
  struct PageCounts {
    uint64_t of[format::kPageStateCount + 1] = {};
    uint64_t operator[](format::PageState state) const { return of[size_t(state)]; }
    uint64_t unknown() const { return of[format::kPageStateCount]; }
    std::string text() const;
  };
  PageCounts count_pages() const;
  // Pin slots that are set, of all lanes, or of one.
  uint64_t count_pins() const;
  uint64_t count_pins(uint32_t lane) const;
  // What the auditor finds, as text, with this lane as the only live one in `live`.
  std::vector<std::string> audit(shm::AuditMode mode, const shm::LaneSet& live) const;

 private:
  FileDescriptor socket_;
  FileDescriptor device_;          // with the pages
  FileDescriptor control_device_;  // when they are apart
  wire::AttachReply attached_{};
  Mapping control_;
  shm::ControlRegion region_;
};

}  // namespace maru::test
