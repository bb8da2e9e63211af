// Memory set aside for the moment when there is no more: what was begun then is finished with it, and until it is whole again
// marud takes no new connections. Without it the next allocation that fails would end marud in the middle of something.
//
// Nor may a destructor fail: that of nlohmann's json (3.11) moves what is in an array or object into a vector first, 16 bytes
// for each element, and ends the program where there is no memory for that. So json must not be what uses the reserve up: what
// marud parses and builds while it serves is bounded (kAdminReplyBytesMax, kBodyBytesMax), and such a vector is some KiB.
#pragma once

#include <cstddef>

namespace maru::daemon {

class MemoryReserve {
 public:
  // Far more than one turn of the event loop needs, replies to 256 events included.
  static constexpr size_t kBytes = 32u << 20;

  // Once, before there are other threads. From here on `operator new` takes from the reserve before it fails.
  static void set_aside();
  // Whether it is whole; tries to make it so. True in a program that never set anything aside.
  static bool is_whole();
};

}  // namespace maru::daemon
