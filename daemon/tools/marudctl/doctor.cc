// marudctl doctor: settings of this machine that would make marud slow or fail. Changes nothing.
#include "daemon/base/plain_text.h"
#include "daemon/tools/marudctl/conversation.h"
#include "daemon/tools/marudctl/machine.h"
#include "daemon/tools/marudctl/memory_limits.h"
#include "daemon/tools/marudctl/output.h"
#include "daemon/version.h"

#include <algorithm>

namespace maru::marudctl {
namespace {

using nlohmann::json;

const char* grade_text(Grade grade) {
  switch (grade) {
    case Grade::kGood: return "good";
    case Grade::kNote: return "note";
    case Grade::kWarning: return "warning";
    case Grade::kWrong: return "wrong";
  }
  return "";
}

}  // namespace

json findings_of(const Arguments& arguments, bool* ret_is_wrong) {
  Conversation conversation(arguments);
  conversation.be_silent(true);
  json status = json::object();
  const int code = conversation.ask_for_list({{"command", "status"}}, "pools", std::nullopt, status);
  MachineSettings machine = read_machine("", status);
  // A marud that answers reports its own test of io_uring. This program's rights may differ.
  if (code != kExitDone) machine.io_uring_code = daemon::try_io_uring();
  std::vector<Diagnosis> diagnoses = judge(machine);
  if (code == kExitDone) {
    for (Diagnosis& diagnosis : judge_marud(status, daemon::kVersionText, machine))
      diagnoses.push_back(std::move(diagnosis));
    json clients;
    if (conversation.ask_for_list({{"command", "clients"}}, "clients", std::nullopt, clients) == kExitDone)
      for (Diagnosis& diagnosis : judge_limits("", status, clients["clients"]))
        diagnoses.push_back(std::move(diagnosis));
  } else {
    diagnoses.push_back(
        {code == kExitRefused ? Grade::kWarning : Grade::kWrong, "marud", conversation.said(),
         code == kExitRefused ? "what marud would say of itself was not looked at" : "no client can attach",
         code == kExitRefused ? "run it as root or as a member of the admin group"
                              : "systemctl status marud, journalctl -u marud"});
  }
  json rows = json::array();
  for (const Diagnosis& diagnosis : diagnoses) {
    *ret_is_wrong |= diagnosis.grade == Grade::kWrong;
    rows.push_back({{"grade", grade_text(diagnosis.grade)},
                    {"what", diagnosis.what},
                    {"found", diagnosis.found},
                    {"why", diagnosis.why},
                    {"advice", diagnosis.advice}});
  }
  return rows;
}

int doctor(const Arguments& arguments) {
  bool is_wrong = false;
  const json rows = findings_of(arguments, &is_wrong);
  const int code = is_wrong ? kExitViolations : kExitDone;
  if (arguments.json) return print_json({{"findings", rows}}), code;
  const size_t width = line_width() != 0 ? line_width() : 100;
  size_t counts[4] = {};
  for (const json& row : rows) {
    const auto grade = row["grade"].get<std::string>();
    for (size_t i = 0; i < 4; ++i) counts[i] += grade == grade_text(Grade(i));
    const std::string margin = grade + std::string(9 - grade.size(), ' ');
    const std::string found =
        daemon::plain_text(row["what"].get<std::string>() + ": " + row["found"].get<std::string>());
    // Whole where a program reads it.
    print(line_width() == 0 ? margin + found + "\n"
                            : margin + wrapped(found, std::string(9, ' '), width).substr(margin.size()));
    for (const char* part : {"why", "advice"})
      if (const auto text = row[part].get<std::string>(); !text.empty())
        print(wrapped((std::string(part) == "advice" ? "-> " : "") + daemon::plain_text(text), std::string(9, ' '),
                      width));
  }
  const auto several = [](size_t count, const char* what) {
    return std::to_string(count) + " " + what + (count == 1 ? "" : "s");
  };
  print("\n" + std::to_string(counts[3]) + " wrong, " + several(counts[2], "warning") + ", " +
        several(counts[1], "note") + ", " + std::to_string(counts[0]) + " good\n");
  return code;
}

}  // namespace maru::marudctl
