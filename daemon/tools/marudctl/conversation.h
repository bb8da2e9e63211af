// The requests of marudctl to marud, and how it prints the replies.
#pragma once

#include "daemon/tools/marudctl/commands.h"
#include "libmaru/base/file_descriptor.h"

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

namespace maru::marudctl {

// One connection for all the requests of a command.
class Conversation {
 public:
  explicit Conversation(const Arguments& arguments) : arguments_(arguments) {}

  // Returns kExitDone and the reply, or prints the error and returns the exit status.
  int ask(nlohmann::json request, nlohmann::json& ret_reply);
  // Asks until there is no "next" or `limit` rows are there. Rows are joined under `field`.
  int ask_for_list(nlohmann::json request, const char* field, std::optional<uint64_t> limit, nlohmann::json& ret_reply);

  // For a program that draws its own screen: an error is kept for said() and not printed.
  void be_silent(bool is_silent) { is_silent_ = is_silent; }
  const std::string& said() const { return said_; }
  // The errno with which marud refused the last request; 0: it did not.
  int refused_with() const { return refused_with_; }

 private:
  int fail(int status, const std::string& text);

  const Arguments& arguments_;
  bool is_silent_ = false;
  std::string said_;
  int refused_with_ = 0;
  FileDescriptor socket_;
  uint32_t last_id_ = 0;
};

// A clock for waits and pauses, which is never set.
uint64_t monotonic_ms();

// Of the terminal; 0 when the output goes elsewhere, where nothing is shortened.
size_t line_width();
// Lines: every other character that would steer the terminal becomes '?'.
void print(const std::string& text);
// On one line when `indent` is -1. Escapes all control characters, also the ones that JSON allows.
std::string printable_json(const nlohmann::json& value, int indent);
void print_json(const nlohmann::json& value);
// From now on errors are printed in JSON, or in words again.
void complain_in_json(bool is_in_json);
// Writes to standard error: a line of text, or a line with an object {"error": TEXT, "status": STATUS}. kExitDone: the command
// goes on. Returns the status.
int complain(int status, const std::string& text);

// The pool for a command that works on one: the named pool, or the only pool, or "default", as marud chooses. Returns the exit
// status.
int pool_meant(const Arguments& arguments, Conversation& conversation, std::string& ret_pool);

// Asks for one object. Prints it as it is with --json, else as fields, beginning with the fields in `first`.
int print_fields(const Arguments& arguments, nlohmann::json request, std::initializer_list<const char*> first);
// The line below a table that --limit has cut.
inline constexpr const char* kMoreText = "... and more: --limit says how many are shown\n";
// Asks for a list. Prints it as it is with --json, else as a table of these columns; `for_people` may change rows before.
int print_list(const Arguments& arguments, nlohmann::json request, const char* field,
               std::initializer_list<const char*> columns, std::optional<uint64_t> limit, const char* when_empty,
               void (*for_people)(nlohmann::json& row) = nullptr);

// The diagnoses of marudctl doctor as rows; whether one of them is wrong. doctor.cc.
nlohmann::json findings_of(const Arguments& arguments, bool* ret_is_wrong);

}  // namespace maru::marudctl
