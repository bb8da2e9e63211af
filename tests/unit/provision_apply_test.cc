// Doing and undoing, with an executor that fails where a test wants it; the record of what was made; the tables' own errors.
#include "daemon/tools/provision/apply.h"
#include "daemon/tools/provision/record.h"
#include "daemon/tools/provision/stop_signals.h"
#include "tests/support/temporary_directory.h"
#include "tests/unit/provision_machines.h"

#include <cerrno>
#include <csignal>
#include <fstream>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

namespace maru::daemon::provision {
namespace {

// Writes down what it is told, and fails at a step or at undoing one.
class ScriptedExecutor : public Executor {
 public:
  std::string fails_at, leaves, leaves_name, cannot_undo;
  std::vector<std::string> calls;

  StepResult run(const Step& step) override {
    calls.push_back("run " + step.wish + " on " + step.target);
    if (step.wish == fails_at)
      return tl::unexpected<StepError>({Error{ENOSPC, "make " + step.wish}, leaves, leaves_name});
    return "made-" + step.wish;
  }
  StepResult undo(const Step& step, const std::string& name) override {
    calls.push_back("undo " + step.wish + " " + name);
    if (step.wish == cannot_undo) return failure(EBUSY, "unmake " + name);
    return name;
  }
};

std::vector<Step> three_steps() {
  std::vector<Step> steps(3);
  const char* wishes[] = {"a", "b", "c"};
  for (int i = 0; i < 3; ++i) {
    steps[i].kind = Step::Kind::kMakeNamespace;
    steps[i].wish = wishes[i];
    steps[i].target = "region0";
  }
  return steps;
}

ApplyOutcome apply_to(ScriptedExecutor& executor, const std::vector<Step>& steps) {
  return apply(steps, executor, {.say = [](const std::string&) {}});
}

TEST(ProvisionApply, DoesStepsInOrder) {
  ScriptedExecutor executor;
  const ApplyOutcome outcome = apply_to(executor, three_steps());
  EXPECT_TRUE(outcome.is_complete);
  EXPECT_EQ(executor.calls, (Texts{"run a on region0", "run b on region0", "run c on region0"}));
  ASSERT_EQ(outcome.done.size(), 3u);
  EXPECT_EQ(outcome.done[2].name, "made-c");
}

TEST(ProvisionApply, AFailureAtAnyStepUndoesThoseBeforeInReverse) {
  ScriptedExecutor first;
  first.fails_at = "a";
  const ApplyOutcome nothing = apply_to(first, three_steps());
  EXPECT_FALSE(nothing.is_complete);
  EXPECT_EQ(first.calls, Texts{"run a on region0"});
  EXPECT_TRUE(nothing.undone.empty() && nothing.left.empty() && nothing.done.empty());

  ScriptedExecutor last;
  last.fails_at = "c";
  const ApplyOutcome outcome = apply_to(last, three_steps());
  EXPECT_EQ(last.calls,
            (Texts{"run a on region0", "run b on region0", "run c on region0", "undo b made-b", "undo a made-a"}));
  EXPECT_EQ(outcome.failure,
            "make the namespace \"c\" on region0: devdax, 0 B, cleared: make c: No space left on device");
  EXPECT_EQ(outcome.undone.size(), 2u);
  EXPECT_TRUE(outcome.done.empty() && outcome.left.empty());
}

TEST(ProvisionApply, WhatCannotBeUndoneIsSaidAndStaysInTheRecord) {
  ScriptedExecutor executor;
  executor.fails_at = "c";
  executor.cannot_undo = "b";
  const ApplyOutcome outcome = apply_to(executor, three_steps());
  EXPECT_EQ(executor.calls.back(), "undo b made-b");  // a may be what b lies on
  EXPECT_EQ(outcome.undone.size(), 0u);
  ASSERT_EQ(outcome.left.size(), 2u);
  EXPECT_NE(outcome.left[0].find("unmake made-b"), std::string::npos);
  ASSERT_EQ(outcome.done.size(), 2u);
  EXPECT_EQ(after({}, outcome, {}).size(), 2u);
}

TEST(ProvisionApply, WhatLiesElsewhereIsUndoneAllTheSame) {
  std::vector<Step> steps = three_steps();
  steps[0].target = "region1";
  ScriptedExecutor executor;
  executor.fails_at = "c";
  executor.cannot_undo = "b";
  const ApplyOutcome outcome = apply_to(executor, steps);
  EXPECT_EQ(executor.calls.back(), "undo a made-a");
  EXPECT_EQ(outcome.undone.size(), 1u);
  EXPECT_EQ(outcome.left.size(), 1u);
  ASSERT_EQ(outcome.done.size(), 1u);
  EXPECT_EQ(outcome.done[0].name, "made-b");
}

TEST(ProvisionApply, WhatAStepCouldNotPutBackIsSaidAndWhatItLiesOnIsLeft) {
  std::vector<Step> steps = three_steps();
  steps[0].target = "region1";
  ScriptedExecutor executor;
  executor.fails_at = "c";
  executor.leaves = "namespace0.2 has its memory";
  const ApplyOutcome outcome = apply_to(executor, steps);
  EXPECT_EQ(outcome.failure,
            "make the namespace \"c\" on region0: devdax, 0 B, cleared: make c: No space left on device");
  ASSERT_EQ(outcome.left.size(), 2u);
  EXPECT_NE(outcome.left[0].find("namespace0.2 has its memory"), std::string::npos);
  EXPECT_NE(outcome.left[1].find("\"b\" on region0"), std::string::npos);
  EXPECT_EQ(outcome.undone.size(), 1u);
}

// A real signal while the second step is under way.
// Whoever started this test may ignore some, as nohup(1) does, and then they are not looked at.
void ignore_no_signal() {
  for (const int number : {SIGINT, SIGTERM, SIGHUP}) ::signal(number, SIG_DFL);
}

TEST(ProvisionApply, ASignalBetweenStepsUndoesThoseBefore) {
  ignore_no_signal();
  for (const int number : {SIGINT, SIGTERM, SIGHUP}) {
    struct Signalled : ScriptedExecutor {
      int number = 0;
      StepResult run(const Step& step) override {
        if (step.wish == "b") ::raise(number);
        return ScriptedExecutor::run(step);
      }
      StepResult undo(const Step& step, const std::string& name) override {
        ::raise(number);  // once more, while it is undone
        return ScriptedExecutor::undo(step, name);
      }
    } executor;
    executor.number = number;
    StopSignals signals;
    const ApplyOutcome outcome =
        apply(three_steps(), executor, {.say = [](const std::string&) {}, .why_stop = [&] { return signals.text(); }});
    EXPECT_FALSE(outcome.is_complete);
    EXPECT_EQ(executor.calls, (Texts{"run a on region0", "run b on region0", "undo b made-b", "undo a made-a"}));
    EXPECT_TRUE(outcome.failure.starts_with("stopped by SIG")) << outcome.failure;
    EXPECT_TRUE(outcome.done.empty());
  }
}

// A system call of a step, or of an undoing, is not interrupted.
TEST(ProvisionApply, ASignalInterruptsNothing) {
  ignore_no_signal();
  int waits[2];
  ASSERT_EQ(::pipe(waits), 0);
  StopSignals signals;
  const pid_t parent = ::getpid(), child = ::fork();
  if (child == 0) {
    for (const int number : {SIGINT, SIGTERM, SIGHUP}) ::kill(parent, number);
    ::close(waits[1]);
    ::_exit(0);
  }
  ::close(waits[1]);
  pollfd end = {waits[0], POLLIN, 0};
  EXPECT_EQ(::poll(&end, 1, -1), 1);  // which no handler lets go on
  EXPECT_EQ(::waitpid(child, nullptr, 0), child);
  EXPECT_EQ(signals.text(), "stopped by SIGHUP");  // the least number of those that wait
  EXPECT_EQ(signals.text(), "stopped by SIGHUP");
  ::close(waits[0]);
}

TEST(ProvisionApply, ASignalThatWasIgnoredStaysSo) {
  const auto before = std::signal(SIGHUP, SIG_IGN);
  {
    StopSignals signals;
    ::raise(SIGHUP);
    EXPECT_EQ(signals.text(), "");
  }
  std::signal(SIGHUP, before);
}

// Killed in the third step: the record has what was made until then.
TEST(ProvisionApply, WhatIsMadeIsWrittenDownStepByStep) {
  test::TemporaryDirectory folder;
  const std::string path = folder.path() + "/made.json";
  const pid_t child = ::fork();
  if (child == 0) {
    struct Killed : ScriptedExecutor {
      StepResult run(const Step& step) override {
        if (step.wish == "c") ::raise(SIGKILL);
        return ScriptedExecutor::run(step);
      }
    } executor;
    const auto keep = [&](const ApplyOutcome& so_far) { (void)write_record(path, after({}, so_far, {})); };
    apply(three_steps(), executor, {.say = [](const std::string&) {}, .keep = keep});
    ::_exit(0);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFSIGNALED(status));
  const auto made = read_record(path);
  ASSERT_TRUE(made);
  ASSERT_EQ(made->size(), 2u);
  EXPECT_EQ((*made)[1].name, "made-b");

  // And what is undone is taken out again.
  ScriptedExecutor executor;
  executor.fails_at = "c";
  std::vector<size_t> kept;
  apply(three_steps(), executor,
        {.say = [](const std::string&) {},
         .keep = [&](const ApplyOutcome& so_far) { kept.push_back(so_far.done.size()); }});
  EXPECT_EQ(kept, (std::vector<size_t>{1, 2, 1, 0}));
}

TEST(ProvisionApply, LaterStepsFindWhatEarlierOnesMade) {
  std::vector<Step> steps(3);
  steps[0].kind = Step::Kind::kMakeCxlRegion;
  steps[0].wish = "all";
  steps[0].target = "decoder0.0";
  steps[1].kind = Step::Kind::kMakeNamespace;
  steps[1].wish = "kv";
  steps[1].target = "cxl:all";
  steps[2].kind = Step::Kind::kGiveToKernel;
  steps[2].wish = "kv";
  ScriptedExecutor executor;
  apply_to(executor, steps);
  EXPECT_EQ(executor.calls, (Texts{"run all on decoder0.0", "run kv on made-all", "run kv on made-kv"}));
}

TEST(ProvisionRecord, IsReadAsItWasWritten) {
  test::TemporaryDirectory folder;
  const std::string path = folder.path() + "/made.json";
  ASSERT_TRUE(read_record(path));
  EXPECT_TRUE(read_record(path)->empty());
  const std::vector<Made> made = {{"hot", WishKind::kDevice, "dax0.1", 4 * kGiB},
                                  {"all", WishKind::kCxlRegion, "region3", 0}};
  ASSERT_TRUE(write_record(path, made));
  const auto read = read_record(path);
  ASSERT_TRUE(read);
  ASSERT_EQ(read->size(), 2u);
  EXPECT_EQ((*read)[0].name, "dax0.1");
  EXPECT_EQ((*read)[0].start, 4 * kGiB);
  EXPECT_EQ((*read)[1].kind, WishKind::kCxlRegion);
  std::ofstream(path) << "[1, 2";
  ASSERT_FALSE(read_record(path));
  EXPECT_NE(read_record(path).error().doing.find("found no record"), std::string::npos);
}

// The kernel gives a device that is made again the memory that is free by then, and the lowest number.
TEST(ProvisionRecord, ADeviceThatWasRemovedAndPutBackElsewhereIsStillItsTables) {
  const std::vector<Made> before = {{"kv", WishKind::kDevice, "dax0.1", 4 * kGiB},
                                    {"hot", WishKind::kDevice, "dax0.2", 12 * kGiB}};
  Step removal = three_steps()[0], making = three_steps()[1];
  removal.kind = Step::Kind::kRemoveDevice;
  removal.target = "dax0.1";
  removal.region = "dax0";
  removal.start = 4 * kGiB;
  making.kind = Step::Kind::kMakeDevice;
  making.target = "dax0";
  for (const char* name : {"dax0.1", "dax0.0"}) {
    SCOPED_TRACE(name);
    struct : ScriptedExecutor {
      std::string name_now;
      StepResult undo(const Step&, const std::string&) override { return name_now; }
    } executor;
    executor.name_now = name;
    executor.fails_at = "b";
    const ApplyOutcome outcome = apply_to(executor, {removal, making});
    EXPECT_EQ(outcome.undone.size(), name == removal.target ? 1u : 0u);
    EXPECT_EQ(outcome.left.size(), name == removal.target ? 0u : 1u);
    Machine machine;
    machine.dax_devices = {dax_device(name, 8 * kGiB), dax_device("dax0.2", kGiB)};
    machine.dax_devices[0].start = 20 * kGiB;
    machine.dax_devices[1].start = 12 * kGiB;
    const auto made = after(before, outcome, machine);
    ASSERT_EQ(made.size(), 2u);
    const Plan release = plan_release(machine, "kv", made, false);
    ASSERT_EQ(release.steps.size(), 1u) << (release.problems.empty() ? "" : release.problems[0].text);
    EXPECT_EQ(release.steps[0].target, name);
    EXPECT_EQ(plan_release(machine, "hot", made, false).steps.size(), 1u);
  }
}

// It is its table's: release finds it, and the next apply does not take it for one that was cleared.
TEST(ProvisionRecord, WhatAStepMadeAndCouldNotRemoveIsKnownAsItsTables) {
  Step making = three_steps()[0];
  making.kind = Step::Kind::kMakeDevice;
  making.wish = "kv";
  making.target = "dax0";
  ScriptedExecutor executor;
  executor.fails_at = "kv";
  executor.leaves = "dax0.1 is left: give back the memory of dax0.1: Device or resource busy";
  executor.leaves_name = "dax0.1";
  std::vector<Made> kept;
  Machine machine;
  machine.dax_regions = {dax_region("dax0", 16 * kGiB, 8 * kGiB)};
  machine.dax_devices = {dax_device("dax0.1", 8 * kGiB)};
  const ApplyOutcome outcome = apply({making}, executor,
                                     {.say = [](const std::string&) {},
                                      .keep = [&](const ApplyOutcome& so_far) { kept = after({}, so_far, machine); }});
  EXPECT_EQ(kept.size(), 1u) << "also when this process is killed while it undoes other steps";

  test::TemporaryDirectory folder;
  const std::string path = folder.path() + "/made.json";
  ASSERT_TRUE(write_record(path, after({}, outcome, machine)));
  const auto made = read_record(path);
  ASSERT_TRUE(made);
  const Plan release = plan_release(machine, "kv", *made, false);
  ASSERT_EQ(release.steps.size(), 1u) << (release.problems.empty() ? "" : release.problems[0].text);
  EXPECT_EQ(release.steps[0].target, "dax0.1");

  Wish wish;
  wish.name = "kv";
  wish.kind = WishKind::kDevice;
  wish.region = "dax0";
  wish.bytes = 8 * kGiB;
  const Plan again = make_plan(machine, {wish}, *made, false);
  ASSERT_EQ(again.problems.size(), 1u);
  EXPECT_NE(again.problems[0].text.find("release it first (marud-provision release kv)"), std::string::npos)
      << again.problems[0].text;
  EXPECT_TRUE(again.steps.empty() && again.settled.empty());
  machine.dax_devices[0].pool = "01234567-89ab-cdef-0123-456789abcdef";
  machine.dax_devices[0].is_blank = false;
  EXPECT_EQ(make_plan(machine, {wish}, *made, false).settled.size(), 1u) << "a marud was faster than the clearing";
}

TEST(ProvisionRecord, OneAtATime) {
  test::TemporaryDirectory folder;
  const std::string path = folder.path() + "/made.json";
  auto first = lock_record(path);
  ASSERT_TRUE(first);
  const auto second = lock_record(path);
  ASSERT_FALSE(second);
  EXPECT_EQ(second.error().code, EBUSY);
  first->reset();
  EXPECT_TRUE(lock_record(path));
}

std::string problem_of(const std::string& tables) {
  std::vector<ConfigProblem> problems;
  parse_config("[[pool]]\nname = \"p\"\nbackend = \"memory\"\nsize = \"1GiB\"\n" + tables, problems);
  return problems.empty() ? "" : std::to_string(problems[0].line) + ": " + problems[0].text;
}

TEST(ProvisionTables, ProblemsNameTheirKeyAndItsLine) {
  const std::string table = "[[provision]]\nname = \"kv\"\n";
  EXPECT_EQ(problem_of(table),
            "5: provision.kind: found nothing, expected \"namespace\", \"device\" or \"cxl-region\"");
  EXPECT_EQ(problem_of("[[provision]]\nkind = \"namespace\"\n"),
            "5: provision.name: found nothing, expected a name of its own, such as \"kv\"");
  const std::string ns = table + "kind = \"namespace\"\n", device = table + "kind = \"device\"\n";
  EXPECT_EQ(problem_of(ns + "size = \"1000KiB\"\nalign = \"2MiB\"\n"),
            "8: provision.size: found \"1000KiB\", expected a multiple of align, 2 MiB");
  EXPECT_EQ(problem_of(ns + "align = \"3MiB\"\n"),
            "8: provision.align: found \"3MiB\", expected \"4KiB\", \"2MiB\" or \"1GiB\"");
  expect_begins(problem_of(ns + "region = \"dax0\"\n"), "8: provision.region: found \"dax0\", expected");
  EXPECT_EQ(problem_of(device + "device = \"/dev/dax0.0\"\n"),
            "8: provision.device: found \"/dev/dax0.0\", expected the name of a DAX device, such as \"dax0.0\"");
  EXPECT_EQ(problem_of(device + "device = \"dax0.0\"\nregion = \"dax0\"\n"),
            "9: provision.region: found \"dax0\", expected nothing: device says which one");
  expect_begins(problem_of(ns + "mode = \"devdax\"\n"), "8: provision.mode: found an unknown key, expect");
  expect_begins(problem_of(device + "size = \"all\"\nreplace = \"dax0.0\"\n"),
                "9: provision.replace: found \"dax0.0\", expected an");
}

TEST(ProvisionTables, TwoThatWantTheSameAreRefused) {
  const std::string table = "[[provision]]\nname = \"a\"\nkind = \"device\"\ndevice = \"dax0.0\"\n";
  EXPECT_EQ(problem_of(table + "[[provision]]\nname = \"b\"\nkind = \"device\"\ndevice = \"dax0.0\"\n"),
            "12: provision.device: found \"dax0.0\", which \"a\" has already, expected another one");
  EXPECT_EQ(problem_of(table + "[[provision]]\nname = \"a\"\nkind = \"namespace\"\n"),
            "10: provision.name: found \"a\" a second time, expected a name of its own");
  expect_begins(problem_of("[[provision]]\nname = \"kv\"\nkind = \"namespace\"\nregion = \"cxl:none\"\n"),
                "8: provision.region: found \"cxl:none\", expec");
}

TEST(ProvisionTables, NamespacesLieOnPersistentMemoryAndDevicesOnVolatile) {
  const auto tables = [](const std::string& kind, const std::string& type) {
    return "[[provision]]\nname = \"kv\"\nkind = \"" + kind + "\"\nregion = \"cxl:all\"\n" +
           "[[provision]]\nname = \"all\"\nkind = \"cxl-region\"\ntype = \"" + type + "\"\n";
  };
  EXPECT_EQ(problem_of(tables("namespace", "persistent")), "");
  EXPECT_EQ(problem_of(tables("device", "volatile")), "");
  EXPECT_EQ(
      problem_of(tables("namespace", "volatile")),
      "8: provision.region: found \"cxl:all\", expected a table of kind \"cxl-region\" and type \"persistent\" of "
      "that name");
  EXPECT_EQ(problem_of(tables("device", "persistent")),
            "8: provision.region: found \"cxl:all\", expected a table of kind \"cxl-region\" and type \"volatile\" of "
            "that name");
}

}  // namespace
}  // namespace maru::daemon::provision
