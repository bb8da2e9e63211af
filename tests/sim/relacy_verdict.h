// Runs a protocol under relacy and says whether it did what it should: the right variant passes, each wrong one is reported.
// relacy replaces new and delete by macros, so that it is included after everything else.
#pragma once

#include <cstdio>
#include <iostream>
#include <streambuf>

#include <relacy/relacy.hpp>

// What relacy says about a failure that is wanted.
struct Silence : std::streambuf {
  int overflow(int c) override { return c; }
  std::streamsize xsputn(const char*, std::streamsize count) override { return count; }
};

constexpr unsigned kRelacyIterations = 200'000;

// True when Test passes exactly if it is the right variant; prints one line.
template <typename Test>
bool is_as_it_should_be(const char* name, bool is_right) {
  Silence silence;
  std::ostream nowhere(&silence);
  rl::test_params parameters;
  parameters.iteration_count = kRelacyIterations;
  parameters.output_stream = is_right ? &std::cout : &nowhere;
  parameters.progress_stream = &nowhere;
  rl::simulate<Test>(parameters);
  const bool has_passed = parameters.test_result == rl::test_result_success;
  const char* verdict = has_passed == is_right ? "as it should be" : is_right ? "FAILS" : "PASSES AND MUST NOT";
  std::printf("%-40s %s\n", name, verdict);
  return has_passed == is_right;
}
