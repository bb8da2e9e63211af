// A loaded object runs as marud, so folder and file must be root's alone. Both are opened first, asked second, and
// loaded through the descriptor: no process can exchange them in between.
#include "daemon/policy/loaded_policy.h"

#include "libmaru/base/file_descriptor.h"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <dlfcn.h>
#include <fcntl.h>
#include <sys/stat.h>

namespace maru::daemon {

namespace {

constexpr size_t kNameMax = 63;

// Keeps the shared object loaded as long as the policy lives, and gives it the name by which it was configured.
class LoadedPolicy final : public Policy {
 public:
  LoadedPolicy(std::string name, void* library, Policy* policy)
      : name_(std::move(name)), library_(library), policy_(policy) {}
  LoadedPolicy(const LoadedPolicy&) = delete;
  LoadedPolicy& operator=(const LoadedPolicy&) = delete;
  ~LoadedPolicy() override {
    delete policy_;  // its code is in the library
    dlclose(library_);
  }

  const char* name() const override { return name_.c_str(); }
  uint32_t needs() const override { return policy_->needs(); }
  Ranking ranking() const override { return policy_->ranking(); }
  bool evicts() const override { return policy_->evicts(); }
  void stored(PolicyBlock& block, const PolicyPool& pool) override { policy_->stored(block, pool); }
  void used(PolicyBlock& block, const PolicyPool& pool) override { policy_->used(block, pool); }
  void child_left(PolicyBlock& parent, const PolicyBlock& child, const PolicyPool& pool) override {
    policy_->child_left(parent, child, pool);
  }
  PolicyPlace place(const PolicyBlock& block) const override { return policy_->place(block); }
  bool spare(PolicyBlock& block, const PolicyPool& pool) override { return policy_->spare(block, pool); }
  void evicted(const PolicyBlock& block) override { policy_->evicted(block); }
  uint64_t rank(const PolicyBlock& block, const PolicyTenant& tenant, const PolicyQueues& queues,
                const PolicyPool& pool) const override {
    return policy_->rank(block, tenant, queues, pool);
  }

 private:
  std::string name_;
  void* library_;
  Policy* policy_;
};

struct LibraryCloser {
  void operator()(void* library) const { dlclose(library); }
};
using Library = std::unique_ptr<void, LibraryCloser>;

bool is_plain_name(std::string_view name) {
  return !name.empty() && name.size() <= kNameMax && std::all_of(name.begin(), name.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '-';
  });
}

std::string built_in_names() {
  std::string names;
  for (const std::string_view name : built_in_policies()) names += (names.empty() ? "" : ", ") + std::string(name);
  return names;
}

// Why others than root could change it; empty: they cannot.
std::string who_may_write(const struct stat& found) {
  if (found.st_uid != 0) return "belongs to user " + std::to_string(found.st_uid) + ", expected root; chown root";
  if ((found.st_mode & (S_IWGRP | S_IWOTH)) != 0) {
    const unsigned mode = found.st_mode & 07777;
    const char octal[] = {'0', char('0' + (mode >> 6 & 7)), char('0' + (mode >> 3 & 7)), char('0' + (mode & 7)), 0};
    return std::string("has mode ") + octal + ", expected nobody but its owner to write; chmod go-w";
  }
  return "";
}

// Something else than was expected stands there, or it cannot be opened.
int refusal(int code) { return code == ENOTDIR || code == ELOOP ? EPERM : code; }

std::string no_policy_text(const std::string& file_name, const std::string& path) {
  return "find the policy '" + file_name.substr(0, file_name.size() - 3) + "', expected one of " + built_in_names() +
         ", or the name of a file in policy_dir; there is no " + path;
}

// Opens the shared object, which must belong to root alone.
Result<FileDescriptor> open_root_owned(const std::string& folder_path, const std::string& file_name) {
  const FileDescriptor folder(::open(folder_path.c_str(), O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  struct stat found = {};
  if (!folder.is_open() && errno == ENOENT)
    return failure(ENOENT, no_policy_text(file_name, folder_path + "/" + file_name));
  if (!folder.is_open() || ::fstat(folder.get(), &found) != 0)
    return failure(refusal(errno), "open the policy folder " + folder_path + ", expected a folder, no symbolic link");
  if (const std::string who = who_may_write(found); !who.empty())
    return failure(EPERM, "load a policy: the policy folder " + folder_path + " " + who);

  const std::string path = folder_path + "/" + file_name;
  // Not blocking: it may turn out to be a pipe.
  FileDescriptor file(::openat(folder.get(), file_name.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
  if (!file.is_open() && errno == ENOENT) return failure(ENOENT, no_policy_text(file_name, path));
  if (!file.is_open() || ::fstat(file.get(), &found) != 0)
    return failure(refusal(errno), "open the policy " + path + ", expected a file, no symbolic link");
  if (!S_ISREG(found.st_mode)) return failure(EPERM, "load a policy: " + path + " is no regular file");
  if (const std::string who = who_may_write(found); !who.empty())
    return failure(EPERM, "load a policy: the file " + path + " " + who);
  return file;
}

// The loader takes two libraries that it loaded by the same path for the same library, even if the file changed. Descriptors
// are numbered again and again, so extra slashes make the paths differ.
std::string loader_path(int fd) {
  static std::atomic<unsigned> loads{0};
  constexpr unsigned kSlashesMax = 1000;
  return "/proc/self/fd" + std::string(1 + loads++ % kSlashesMax, '/') + std::to_string(fd);
}

}  // namespace

Result<std::unique_ptr<Policy>> load_policy(std::string_view name, const PolicyOptions& options,
                                            const std::string& policy_dir) {
  if (!is_plain_name(name))
    return failure(ENOENT, "find the policy '" + std::string(name) + "', expected one of " + built_in_names() +
                               ", or the name of a file in policy_dir without .so (letters, digits, _ and -, at most " +
                               std::to_string(kNameMax) + ")");
  if (policy_dir.empty())
    return failure(ENOENT, "find the policy '" + std::string(name) + "', expected one of " + built_in_names() +
                               "; others need a policy_dir");
  const std::string file_name = std::string(name) + ".so", path = policy_dir + "/" + file_name;
  const Result<FileDescriptor> file = open_root_owned(policy_dir, file_name);
  if (!file) return tl::unexpected(file.error());

  Library library(dlopen(loader_path(file->get()).c_str(), RTLD_NOW | RTLD_LOCAL));
  if (!library) {
    const char* const reason = dlerror();
    std::string why = reason ? reason : "no reason given";
    // The loader's text begins with its path, which tells an administrator nothing.
    if (const size_t colon = why.find(": "); why.starts_with("/proc/self/fd") && colon != std::string::npos)
      why.erase(0, colon + 2);
    return failure(ELIBACC, "load the policy " + path + " (" + why + "); build it as docs/examples/policy shows");
  }
  const auto* const abi = static_cast<const uint32_t*>(dlsym(library.get(), "maru_policy_abi"));
  const auto create = reinterpret_cast<decltype(&maru_policy_create)>(dlsym(library.get(), "maru_policy_create"));
  if (abi == nullptr || create == nullptr)
    return failure(ELIBACC, "load the policy " + path + ": it exports no " +
                                (abi == nullptr ? "maru_policy_abi" : "maru_policy_create") +
                                "; see the end of maru/policy.h");
  if (*abi != kPolicyAbi)
    return failure(ELIBACC, "load the policy " + path + ": it was built for version " + std::to_string(*abi) +
                                " of maru/policy.h, expected " + std::to_string(kPolicyAbi) + "; build it again");

  std::vector<PolicyOption> given;
  for (const auto& [option, value] : options) given.push_back({option.c_str(), value.c_str()});
  char problem[512] = "";
  Policy* const policy = create(given.data(), given.size(), problem, sizeof problem);
  problem[sizeof problem - 1] = 0;
  if (policy == nullptr)
    return failure(EINVAL,
                   "make the policy " + std::string(name) + ": " + (problem[0] ? problem : "it did not say why not"));
  return std::make_unique<LoadedPolicy>(std::string(name), library.release(), policy);
}

}  // namespace maru::daemon
