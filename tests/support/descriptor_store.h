// What systemd does for marud, as far as tests need it: it takes what marud sends to $NOTIFY_SOCKET and keeps the descriptors
// that come along, by name, for the next marud. As long as there is one, $MARU_TEST_MARUD names a program that starts marud so.
#pragma once

#include "libmaru/base/file_descriptor.h"
#include "tests/support/temporary_directory.h"

#include <map>
#include <string>
#include <vector>

namespace maru::test {

class DescriptorStore {
 public:
  DescriptorStore();
  ~DescriptorStore();
  // What came until now; the next marud gets what is kept then.
  void read_messages();
  std::vector<std::string> names() const;
  void lose(const std::string& name);

 private:
  void write_program();
  bool is_kept(int fd) const;

  TemporaryDirectory directory_;
  std::string marud_, program_;
  FileDescriptor socket_;
  std::multimap<std::string, FileDescriptor> kept_;  // what was kept already is not kept twice
};

}  // namespace maru::test
