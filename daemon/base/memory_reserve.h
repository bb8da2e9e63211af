// Memory set aside for the moment when there is no more: marud finishes its present work with it, and takes no new
// connections until it is whole again. Without it the next allocation that fails would end marud in the middle of some
// work.
//
// Nor may a destructor fail. The destructor of nlohmann's json (3.11) first moves the elements of an array or object into a
// vector, 16 bytes for each, and ends the program without memory for it. So json must not use the reserve up: marud parses and
// builds only bounded texts while it serves (kAdminReplyBytesMax, kBodyBytesMax), and such a vector is some KiB.
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
