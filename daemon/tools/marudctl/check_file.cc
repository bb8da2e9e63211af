// The auditor over a file, without marud: nothing is written, not even by accident, because nothing is mapped for writing.
#include "daemon/base/json_text.h"
#include "daemon/tools/marudctl/conversation.h"
#include "libmaru/base/file_descriptor.h"
#include "libmaru/base/mapping.h"
#include "libmaru/shm/audit/audit.h"
#include "libmaru/shm/region/control_region.h"
#include "libmaru/shm/region/data_label.h"
#include "maru/format/control_region.h"

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fcntl.h>
#include <nlohmann/json.hpp>
#include <sys/stat.h>

namespace maru::marudctl {
namespace {

int refuse(const std::string& path, const std::string& why) { return complain(kExitRefused, path + ": " + why); }

class FindingRows final : public shm::FindingSink {
 public:
  void found(const shm::Finding& finding) override {
    rows.push_back({{"invariant", shm::invariant_info(finding.invariant).name},
                    {"index", finding.index},
                    {"slot", finding.slot},
                    {"words", {finding.words[0], finding.words[1], finding.words[2]}}});
  }
  nlohmann::json rows = nlohmann::json::array();
};

// marud locks the file that it serves, up to where the locks of clients' lanes begin.
bool is_served(int fd) {
  struct flock range = {};
  range.l_type = F_RDLCK;
  range.l_whence = SEEK_SET;
  range.l_len = off_t(format::kLaneLocks);
  return ::fcntl(fd, F_OFD_GETLK, &range) == 0 && range.l_type != F_UNLCK;
}

// A file of a pool, opened for reading only.
struct PoolFile {
  std::string path;
  FileDescriptor fd;
  uint64_t bytes = 0;
};

// Prints the reason and returns nothing.
std::optional<PoolFile> open_file(const std::string& path) {
  PoolFile file{path, FileDescriptor(::open(path.c_str(), O_RDONLY | O_CLOEXEC))};
  struct stat status = {};
  if (!file.fd.is_open() || ::fstat(file.fd.get(), &status) != 0) {
    refuse(path, std::strerror(errno));
    return std::nullopt;
  }
  file.bytes = uint64_t(status.st_size);
  return file;
}

// Why this file does not have the pages of the pool with that header; empty: it has them.
std::string why_not_its_pages(const PoolFile& pages, const format::Header& header) {
  format::DataLabel label = {};
  if (::pread(pages.fd.get(), &label, sizeof(label), 0) != ssize_t(sizeof(label)) ||
      label.magic != format::kDataLabelMagic)
    return "found no pages of a pool, expected those of the pool in --file";
  if (label.checksum != shm::data_label_checksum(label)) return "found the pages of a pool with a damaged label";
  if (std::memcmp(label.uuid, header.uuid, sizeof(label.uuid)) != 0)
    return "found the pages of another pool, expected those of the pool in --file";
  return label.data_bytes == pages.bytes
             ? ""
             : "found " + std::to_string(pages.bytes) + " bytes, expected " + std::to_string(label.data_bytes) +
                   ", as its label says: bring the whole file back";
}

}  // namespace

void print_violations(const nlohmann::json& rows) {
  for (const auto& row : rows) {
    const auto& words = row.at("words");
    std::printf("%s  index %llu  slot %u  words %#llx %#llx %#llx\n", row.at("invariant").get<std::string>().c_str(),
                row.at("index").get<unsigned long long>(), row.at("slot").get<unsigned>(),
                words.at(0).get<unsigned long long>(), words.at(1).get<unsigned long long>(),
                words.at(2).get<unsigned long long>());
  }
}

int check_file(const std::string& path, const std::optional<std::string>& pages_path, bool json) {
  const auto file = open_file(path);
  if (!file) return kExitRefused;
  if (is_served(file->fd.get()))
    complain(kExitDone, path + ": a marud serves it; what clients have not finished counts as wrong here");
  if (file->bytes < sizeof(format::Header)) return refuse(path, "too short for a pool");
  format::Header header;
  if (::pread(file->fd.get(), &header, sizeof(header), 0) != ssize_t(sizeof(header)))
    return refuse(path, std::strerror(errno));
  if (header.magic == format::kDataLabelMagic)
    return refuse(path,
                  "found the pages of a pool in two files, expected its control region: name that with --file and this "
                  "one with --pages");
  if (header.magic == format::kMagic && header.version_major != format::kVersionMajor)
    return refuse(path, "found a pool of version " + std::to_string(header.version_major) + "." +
                            std::to_string(header.version_minor) + " of the format" +
                            (header.checksum == shm::header_checksum(header) ? "" : ", or a damaged header") +
                            ", expected one of version " + std::to_string(format::kVersionMajor) +
                            "; take the marudctl that belongs to the marud that made it");
  uint64_t bytes = file->bytes;
  if (pages_path) {
    const auto pages = open_file(*pages_path);
    if (!pages) return kExitRefused;
    if (const std::string why = why_not_its_pages(*pages, header); !why.empty()) return refuse(*pages_path, why);
    bytes += pages->bytes;
    if (header.magic == format::kMagic && header.parameters.pool_bytes > bytes)
      return refuse(path, "found " + std::to_string(file->bytes) + " bytes, expected the " +
                              std::to_string(header.parameters.pool_bytes - pages->bytes) +
                              " that the pool has beside its pages: this file was cut off, bring the whole one back");
  } else if (header.magic == format::kMagic && header.parameters.pool_bytes > bytes) {
    return refuse(path, "found " + std::to_string(bytes) + " bytes of a pool of " +
                            std::to_string(header.parameters.pool_bytes) +
                            ", expected all of it: if its pages lie in another file, name that with --pages; if it was "
                            "cut off, bring the whole file back");
  }
  shm::Layout layout;
  if (const char* wrong = shm::ControlRegion::check_header(header, bytes, &layout)) return refuse(path, wrong);
  auto mapped = Mapping::map_shared(file->fd.get(), 0, layout.control_bytes, PROT_READ);
  if (!mapped) return refuse(path, mapped.error().text());
  shm::ControlRegion region;
  if (const char* wrong = shm::ControlRegion::attach(mapped->bytes(), bytes, &region)) return refuse(path, wrong);

  // No process works on a file that is looked at: everything that was unfinished when the last process left counts.
  std::vector<uint64_t> scratch(shm::audit_scratch_bytes(region) / sizeof(uint64_t) + 1);
  FindingRows findings;
  shm::AuditRequest request;
  request.mode = shm::AuditMode::kExact;
  const shm::AuditReport report = shm::audit(region, request, std::as_writable_bytes(std::span(scratch)), findings);
  if (json) {
    const nlohmann::json reply = {{"file", path}, {"findings", report.findings}, {"violations", findings.rows}};
    std::printf("%s\n", daemon::json_text(reply, 2).c_str());
  } else {
    print_violations(findings.rows);
    std::printf("%llu violations in %s\n", static_cast<unsigned long long>(report.findings), path.c_str());
  }
  return report.findings == 0 ? kExitDone : kExitViolations;
}

}  // namespace maru::marudctl
