// The built-in policies, each made by one function in the file of its name. They read their options from the reader, whose
// finish() the caller asks afterwards.
#pragma once

#include "daemon/policy/option_reader.h"
#include "maru/policy.h"

#include <memory>

namespace maru::daemon {

std::unique_ptr<Policy> make_lru(OptionReader& options);
std::unique_ptr<Policy> make_clock(OptionReader& options);
std::unique_ptr<Policy> make_fifo(OptionReader& options);
std::unique_ptr<Policy> make_lfu(OptionReader& options);
std::unique_ptr<Policy> make_ttl(OptionReader& options);
std::unique_ptr<Policy> make_s3fifo(OptionReader& options);
std::unique_ptr<Policy> make_size_aware(OptionReader& options);
std::unique_ptr<Policy> make_priority(OptionReader& options);
std::unique_ptr<Policy> make_isolated_lru(OptionReader& options);
std::unique_ptr<Policy> make_odds(OptionReader& options);
std::unique_ptr<Policy> make_none(OptionReader& options);

}  // namespace maru::daemon
