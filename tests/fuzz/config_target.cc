// Any text as marud's configuration: it is read or refused, each refusal says something, and what is not refused can be
// relied on.
#include "daemon/config/config.h"
#include "maru/format/limits.h"
#include "tests/fuzz/target.h"

#include <bit>
#include <cstring>
#include <set>
#include <string>
#include <string_view>

namespace maru::fuzz {

std::vector<Input> first_inputs() {
  std::vector<Input> inputs;
  for (const std::string_view text : {
           std::string_view(
               "[daemon]\nsocket = \"/run/marud/marud.sock\"\nstate_dir = \"/run/marud/state\"\n"
               "log_level = \"info\"\nadmin_group = 0\nadopt_grace_ms = 2000\n\n[[pool]]\nname = \"default\"\n"
               "backend = \"memory\"\nsize = \"64GiB\"\nhuge_pages = \"try\"\nnuma_node = 1\n"
               "page_bytes = \"2MiB\"\nregion_bytes = \"256MiB\"\nlanes = 256\npins = 16384\n"
               "touch_entries = 4096\nkey_inline_bytes = 128\nmax_regions_per_instance = 0\n"
               "checksums = false\nusers = [0, 1000]\ngroups = [0]\n"),
           std::string_view("[[pool]]\nname = \"a\"\nbackend = \"file\"\npath = \"/mnt/pool\"\nsize = \"1TiB\"\n"
                            "[[pool]]\nname = \"b\"\nbackend = \"memory\"\nsize = 1048576\n"),
           std::string_view("[[pool]]\nname = \"a\"\nbackend = \"file\"\npath = \"/mnt/pool\"\n"
                            "control_path = \"/mnt/control\"\nsize = \"1GiB\"\nreaders = [5]\n"),
           std::string_view("[pool]\nname = 3\n"),
           // Every key of every table at least once, so that each is also met with another's value.
           std::string_view(
               "[http]\nsocket = \"/run/marud/http.sock\"\nlisten = \"127.0.0.1:9101\"\ntoken_file = \"/etc/token\"\n"
               "read_token_file = \"/etc/read-token\"\n"
               "connections = 64\ntimeout_ms = 2000\n[limits]\nconnections = 9\nregions = 3\nbytes = \"1GiB\"\npins = "
               "0\n"
               "[[limit]]\nuser = \"root\"\nbytes = \"64GiB\"\n[[limit]]\ngroup = 7\nregions = 1\npins = 5\n"
               "[[pool]]\nname = \"a\"\nbackend = \"memory\"\nsize = \"8MiB\"\n"),
           std::string_view(
               "[daemon]\npolicy_dir = \"/usr/lib/marud/policies\"\nlog_level = \"debug\"\n"
               "[[pool]]\nname = \"far\"\nbackend = \"dax\"\ndevice = \"/dev/dax0.0\"\ncontrol_device = "
               "\"/dev/dax1.0\"\n"
               "align = \"2MiB\"\nformat = \"never\"\nafter_power_loss = \"verify\"\nchecksums = true\nreaders = "
               "[\"root\", 5]\n"
               "reader_groups = [0]\n"
               "[[pool]]\nname = \"b\"\nbackend = \"dax\"\ndevice = \"uuid:01234567-89ab-cdef-0123-456789abcdef\"\n"
               "after_power_loss = \"format\"\n[[pool]]\nname = \"c\"\nbackend = \"dax\"\ndevice = \"cxl:free\"\n"),
           std::string_view("[[pool]]\nname = \"hosts\"\nbackend = \"file\"\npath = \"/mnt/pool\"\nsize = \"1GiB\"\n"
                            "reserve = false\nfirst_touch = true\n"
                            "profile = \"shared\"\ncoherent = true\nhosts = 4\nsuspect_after_ms = 5000\n"
                            "fencing_command = [\"/bin/false\", \"-x\"]\nfencing_timeout_ms = 30000\n"
                            "fencing_names = [\"a\", \"b\"]\n"),
           std::string_view(
               "[[pool]]\nname = \"a\"\nbackend = \"memory\"\nsize = \"1GiB\"\nnuma_nodes = [0, 1]\nnuma_policy = "
               "\"interleave\"\n"
               "first_touch = true\nadmins = [\"root\"]\nadmin_groups = [0]\npolicy = \"s3fifo\"\n"
               "policy_options = { probation = 0.5, x = true, y = \"z\" }\nhigh_watermark = 0.9\nlow_watermark = 0.8\n"
               "pin_overdue_ms = 30000\ntenants_max = 16\ndefault_soft_limit = 0\ndefault_hard_limit = "
               "\"1MiB\"\ntenants = \"listed\"\n"
               "[[pool.tenant]]\nname = \"alice\"\nsoft = \"8GiB\"\nhard = \"16GiB\"\n[[pool.tenant]]\nname = "
               "\"bob\"\nhard = 0\n"),
           std::string_view("[[provision]]\nname = \"kv\"\nkind = \"namespace\"\nregion = \"any\"\nsize = \"all\"\n"
                            "[[pool]]\nname = \"a\"\nbackend = \"memory\"\nsize = \"1.5GiB\"\n"),
           std::string_view("pool = [ { name = \"x\", size = \"99999999999999999999TiB\" } ]\n"),
       })
    inputs.emplace_back(text.begin(), text.end());
  return inputs;
}

}  // namespace maru::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace maru;
  const std::string text(reinterpret_cast<const char*>(data), size);
  std::vector<daemon::ConfigProblem> problems;
  const daemon::Config config = daemon::parse_config(text, problems);
  for (const daemon::ConfigProblem& problem : problems) {
    fuzz::must(!problem.text.empty(), "a problem that says nothing");
    fuzz::must(problem.line >= 0, "a problem before the first line");
  }
  if (!problems.empty()) return 0;
  fuzz::must(!config.socket_path.empty() && !config.state_dir.empty(), "no socket or no state directory");
  fuzz::must(!config.pools.empty() && config.pools.size() <= limits::kPoolsMax, "an impossible number of pools");
  std::set<std::string> names;
  for (const daemon::PoolSpec& pool : config.pools) {
    fuzz::must(names.insert(pool.pool.name).second, "two pools of one name");
    fuzz::must(pool.bytes <= limits::kPoolBytesMax, "a pool that is too large");
    fuzz::must(pool.pool.page_bytes == 0 || std::has_single_bit(pool.pool.page_bytes), "impossible pages");
    fuzz::must(pool.pool.lanes <= limits::kLanesMax, "too many lanes");
    fuzz::must(pool.backend != daemon::Backend::kFile || pool.path.starts_with('/'), "a file without a place");
  }
  return 0;
}
