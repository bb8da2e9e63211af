"""Completion of marudctl: what may come next, against the summary and a real marud; then in real shells, where they are.

  completion_test.py --marud PROGRAM --marudctl PROGRAM --replay PROGRAM --trace FILE words|bash|zsh|fish
"""
import argparse
import json
import os
import pathlib
import pty
import re
import select
import shutil
import signal
import subprocess
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "api"))
from with_marud import Marud  # noqa: E402

PATIENCE_S = 180  # a busy machine takes its time, and nothing here is about time
PATIENT = ["--timeout-ms", "120000"]  # of the words that are completed: what marud is asked may take as long
OTHER_POOL = """
[[pool]]
name = "embeddings"
backend = "memory"
size = "8MiB"
page_bytes = "4KiB"
"""
TENANTS = ["alice", "0x616c20696365", "team:blue"]  # as marud writes them; the second one is "al ice"
# Names that a client chose so that a shell would run them, one way or another, and others that quotes get wrong.
HOSTILE = ["evil$(touch${IFS}ran)x", "grave`touch${IFS}ran`x", "shut\"$(touch${IFS}ran)x", "pair'$(touch${IFS}ran)'x",
           "back\\$(touch${IFS}ran)x", "past!1$(touch${IFS}ran)x"]
failures = []


def expect(condition, what):
    if not condition:
        failures.append(what)


def run(arguments, marud, *more):
    return subprocess.run([arguments.marudctl, *PATIENT, *more], env=marud.environment, capture_output=True, text=True,
                          timeout=PATIENCE_S)


def words(arguments, marud, *before):
    said = run(arguments, marud, "completion", "words", "--", *before)
    expect(said.returncode == 0 and said.stderr == "", f"completing {before}: {said.returncode} {said.stderr}")
    return [line.split("\t")[0] for line in said.stdout.splitlines()]


def commands(arguments, marud):
    """Each command of the summary, and the options of its usage."""
    text = run(arguments, marud, "--help").stdout
    listed = text[text.index("Commands:"):text.index("Options:")]
    found = re.findall(r"^  ([a-z][a-z-]*(?: [a-z][a-z-]*)?)(.*(?:\n {9}.*)?)$", listed, re.MULTILINE)
    return {name: set(re.findall(r"--[a-z-]+[a-z]", usage)) for name, usage in found}


def common_options(arguments, marud):
    text = run(arguments, marud, "--help").stdout
    return set(re.findall(r"^  (?:-\w, )?(--[a-z-]+)", text[text.index("Options:"):], re.MULTILINE))


def check_summary(arguments, marud, complete):
    """Every command and every option of the summary, and nothing else. `complete` is given all lines at once."""
    known, common = commands(arguments, marud), common_options(arguments, marud)
    lines, expected = [[""]], [{name.split()[0] for name in known}]
    for first in sorted({name.split()[0] for name in known if " " in name}):
        lines.append([first, ""])
        expected.append({name.split()[1] for name in known if name.startswith(first + " ")})
    for name, options in known.items():
        if name != "help":
            lines.append([*name.split(), "--"])
            expected.append(options | common)
    for line, found, wanted in zip(lines, complete(lines), expected, strict=True):
        expect(found == wanted, f"{line}: found {sorted(found)}, expected {sorted(wanted)}")


def check_words(arguments, marud):
    check_summary(arguments, marud, lambda lines: [set(words(arguments, marud, *line)) for line in lines])

    def offers(*line):
        return set(words(arguments, marud, *PATIENT, *line))

    expect(offers("--pool", "") == {"default", "embeddings"}, "the pools are asked for")
    expect(offers("--pool=d") == {"--pool=default", "--pool=embeddings"}, "the pools behind a =")
    expect(offers("device", "drain", "") == {"default", "embeddings"}, "the devices are asked for")
    expect(offers("quota", "get", "") == set(TENANTS), f"tenants: {offers('quota', 'get', '')}")
    expect(offers("--pool", "embeddings", "quota", "get", "") == set(), "tenants of another pool")
    expect(offers("blocks", "--tenant", "") == set(TENANTS), "tenants are asked for by --tenant, too")
    built_in = json.loads(run(arguments, marud, "--json", "policy", "show").stdout)["built_in"]
    expect(offers("policy", "set", "") == set(built_in), "policies are those that marud has")
    clients = json.loads(run(arguments, marud, "--json", "clients").stdout)["clients"]
    expect(clients, "no client is attached")
    for line, name in ((("client", "fence", "--pid", ""), "pid"), (("client", "fence", ""), "lane")):
        expect(offers(*line) == {str(row[name]) for row in clients}, f"{line}: {offers(*line)}, expected {clients}")
    refused = run(arguments, marud, "blocks", "--type", "nonsense").stderr
    expect(offers("blocks", "--type", "") == set(re.search("expected one of (.*)", refused).group(1).split(", ")),
           f"types of content are those that marud takes: {refused}")
    expect(offers("quota", "mode", "") == {"any", "listed"}, "modes of quotas")
    expect(offers("quota", "set", "alice", "--soft", "") == {"none", "nothing", "default"}, "limits of a quota")
    expect(offers("check", "--file", "") == {":paths"}, "names of files")
    expect(offers("quota", "get", "alice", "") == set(), "one tenant is enough")
    expect("--json" not in offers("--json", "status", "--"), "an option is given once")
    expect(offers("help", "quota", "s") >= {"set", "list"}, "help goes on as the command does")
    expect(offers("--", "--") >= {"status"}, "behind -- nothing is an option")
    expect(offers("status", "--js=") == set() and offers("nonsense", "") == set(), "what is not known goes on with nothing")
    away = run(arguments, marud, "completion", "words", "--", "--socket", "/nonexistent/socket", "--pool", "")
    expect((away.returncode, away.stdout, away.stderr) == (0, "", ""), f"without marud: {away}")
    for shell in ("tcsh", ""):
        expect(run(arguments, marud, "completion", shell).returncode == 2, f"the shell {shell!r} is refused")


class Shell:
    """An interactive shell in a terminal, whose keys are pressed here."""

    def __init__(self, command, arguments, marud, rows=60):
        path = os.path.dirname(os.path.abspath(arguments.marudctl)) + ":" + os.environ["PATH"]
        environment = {**marud.environment, "PATH": path, "TERM": "dumb", "HOME": marud.directory.name, "LC_ALL": "C.UTF-8",
                       "ZDOTDIR": marud.directory.name, "COLUMNS": "200", "LINES": str(rows)}
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            os.execvpe(command[0], command, environment)
        self.text = ""
        self.marks = 0

    def wait_for(self, pattern, why):
        deadline = time.monotonic() + PATIENCE_S
        while not re.search(pattern, self.text):
            ready, _, _ = select.select([self.fd], [], [], max(0, deadline - time.monotonic()))
            data = os.read(self.fd, 65536) if ready else b""
            if not data:
                failures.append(f"{why}: waited for {pattern!r}, found {self.text!r}")
                return
            self.text += re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", data.decode(errors="replace")).replace("\r", "")

    def do(self, line):
        """Runs a command, and forgets what was shown."""
        self.marks += 1
        os.write(self.fd, f"{line}; echo mark:$((1000 + {self.marks}))\n".encode())
        self.wait_for(f"mark:{1000 + self.marks}", line)
        self.text = ""

    def complete(self, typed, pattern, keys="\t"):
        os.write(self.fd, f"{typed}{keys}".encode())
        self.wait_for(pattern, f"completing {typed!r}")
        os.write(self.fd, b"\x15")  # Ctrl-U
        self.do("true")

    def ask_for_tenant(self, line, tenant):
        """Completes a line, and has it run: marud is asked for this tenant, and for nothing else."""
        os.write(self.fd, f"{line}\t\n".encode())
        self.wait_for(re.escape(f'"tenant": {json.dumps(tenant)}'), f"running the completion of {line!r}")
        self.do("true")

    def check_refusal(self, line):
        """Completes a line that cannot be completed in its quotes: it is left as it is."""
        os.write(self.fd, f"{line}\t=*".encode())
        self.wait_for(re.escape(f"{line}=*"), f"completing {line!r}")
        os.write(self.fd, b"\x15")
        self.do("true")

    def end(self):
        os.write(self.fd, b"\x15exit\n")
        os.close(self.fd)
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)


def in_bash(arguments, marud):
    """What bash offers for the last words of many lines."""
    def complete(lines):
        script = ('source /dev/stdin <<< "$(marudctl completion bash)"; for line; do mapfile -t COMP_WORDS <<< "$line"; '
                  'COMP_CWORD=$((${#COMP_WORDS[@]} - 1)); _marudctl; printf "%s " "${COMPREPLY[@]}"; echo; done')
        path = os.path.dirname(os.path.abspath(arguments.marudctl)) + ":" + os.environ["PATH"]
        said = subprocess.run(["bash", "-c", script, "bash", *("\n".join(["marudctl", *line]) for line in lines)],
                              env={**marud.environment, "PATH": path}, capture_output=True, text=True, timeout=PATIENCE_S)
        expect(said.stderr == "", f"completing in bash: {said.stderr}")
        return [set(line.split()) for line in said.stdout.split("\n")[:-1]]

    check_summary(arguments, marud, complete)
    shell = Shell(["bash", "--norc", "--noprofile", "-i"], arguments, marud)
    shell.do("bind 'set bell-style none'; bind 'set enable-bracketed-paste off'; source <(marudctl completion bash)")
    patient = "marudctl " + " ".join(PATIENT)
    shell.complete("marudctl quota se", r"quota set ")
    shell.complete(f"{patient} --pool=emb", r"--pool=embeddings ")
    shell.complete(f"{patient} --pool emb", r"--pool embeddings ")
    shell.complete(f"{patient} quota get team:b", r"get team:blue ")
    shell.complete(f"{patient} quota get te", r"get team:blue ")
    shell.complete(f"{patient} quota get 'te", r"get 'team:blue' ")
    shell.complete(f"{patient} --socket=/nonexistent/socket quota get te", r"get te$")
    shell.complete(f"{patient} check --file {marud.directory.name}/maru", r"/marud\.", keys="\t\t")
    shell.complete("marudctl memory ", r"(?s)list\s+poison", keys="\t\t")

    # No name is run, in whatever quotes it is completed.
    make_hostile_tenants(arguments, marud)
    shell.do(f"set -o histexpand; cd {marud.directory.name}")
    asking = f"{patient} --json quota get "
    for tenant in HOSTILE:
        for line, other in (("", ""), ("'", "'"), ('"', "!"), ("--pool default '", "'"), ('--pool default "', "!")):
            if other and other in tenant:
                shell.check_refusal(f"{asking}{line}{tenant[:4]}")
            else:
                shell.ask_for_tenant(f"{asking}{line}{tenant[:4]}", tenant)
    shell.ask_for_tenant(f'{asking}"evil\\$(touch', HOSTILE[0])
    shell.ask_for_tenant(f"{asking}evil\\$\\(touch", HOSTILE[0])
    shell.ask_for_tenant(f'{asking}"back\\\\', HOSTILE[4])
    for line in ("'ev'i", '"ev"i', "ev'i", 'ev"i'):
        shell.check_refusal(f"{asking}{line}")
    blocks = f'{patient} --json blocks --tenant="evil'
    shell.complete(blocks, re.escape(r'--tenant="evil\$(touch\${IFS}ran)x" '))
    expect_nothing_ran(marud)
    shell.end()


def in_zsh(arguments, marud):
    shell = Shell(["zsh", "-f", "-i"], arguments, marud)
    shell.do("unsetopt zle_bracketed_paste beep; PS1='> '; autoload -U compinit; compinit -u -D; "
             "source <(marudctl completion zsh)")
    patient = "marudctl " + " ".join(PATIENT)
    shell.complete("marudctl quota se", r"quota set ")
    shell.complete("marudctl quota ", r"(?s)remove +-- the tenant's own limits go")
    shell.complete("marudctl status --js", r"status --json")
    shell.complete(f"{patient} --pool=emb", r"--pool=embeddings")
    shell.complete(f"{patient} --pool ", r"(?s)(?=.*default)(?=.*embeddings).* -- serving")
    shell.complete(f"{patient} quota get te", r"get team:blue")
    shell.complete(f"{patient} check --file {marud.directory.name}/marud.t", r"/marud\.toml")
    make_hostile_tenants(arguments, marud)
    shell.do(f"cd {marud.directory.name}")
    for tenant in HOSTILE:
        for quote in ("", "'", '"'):
            shell.ask_for_tenant(f"{patient} --json quota get {quote}{tenant[:4]}", tenant)
    expect_nothing_ran(marud)
    shell.end()


def in_fish(arguments, marud):
    def complete(lines):
        path = os.path.dirname(os.path.abspath(arguments.marudctl)) + ":" + os.environ["PATH"]
        environment = {**marud.environment, "PATH": path, "HOME": marud.directory.name, "XDG_CONFIG_HOME": marud.directory.name}
        quoted = ["marudctl " + " ".join(word.replace(" ", "\\ ") for word in line) for line in lines]
        script = "marudctl completion fish | source; for line in $argv; complete -C $line; echo; end"
        said = subprocess.run(["fish", "--no-config", "-c", script, *quoted], env=environment, capture_output=True, text=True,
                              timeout=PATIENCE_S)
        expect(said.stderr == "", f"completing in fish: {said.stderr}")
        return [{line.split("\t")[0] for line in part.split("\n") if line} for part in said.stdout.split("\n\n")[:len(lines)]]

    check_summary(arguments, marud, complete)
    folder = marud.directory.name
    lines = {("--pool", ""): {"default", "embeddings"}, ("--pool=emb",): {"--pool=embeddings"},
             ("quota", "get", "te"): {"team:blue"}, ("quota", "get", ""): set(TENANTS),
             ("check", "--file", f"{folder}/marud.t"): {f"{folder}/marud.toml"}}
    for (line, wanted), found in zip(lines.items(), complete([[*PATIENT, *line] for line in lines]), strict=True):
        expect(found == wanted, f"{line} in fish: found {found}, expected {wanted}")


def make_hostile_tenants(arguments, marud):
    for tenant in HOSTILE:
        said = run(arguments, marud, "quota", "set", tenant, "--soft", "1MiB")
        expect(said.returncode == 0, f"quota set {tenant}: {said.stderr}")


def expect_nothing_ran(marud):
    expect(not (pathlib.Path(marud.directory.name) / "ran").exists(), "a shell ran the name of a tenant")


def with_client(arguments, marud):
    """A client that stays: a replay that is stopped as soon as it is attached."""
    replay = subprocess.Popen([arguments.replay, "--trace", arguments.trace, "--payload", "4096", "--no-progress"],
                              env=marud.environment, stdout=subprocess.DEVNULL, start_new_session=True)
    deadline = time.monotonic() + PATIENCE_S
    while not json.loads(run(arguments, marud, "--json", "clients").stdout)["clients"] and time.monotonic() < deadline:
        time.sleep(0.01)
    os.killpg(replay.pid, signal.SIGSTOP)
    try:
        check_words(arguments, marud)
    finally:
        os.killpg(replay.pid, signal.SIGKILL)
        replay.wait(PATIENCE_S)


def main():
    parser = argparse.ArgumentParser()
    for name in ("--marud", "--marudctl", "--replay", "--trace"):
        parser.add_argument(name, required=True)
    parser.add_argument("what", choices=["words", "bash", "zsh", "fish"])
    arguments = parser.parse_args()
    if arguments.what != "words" and not shutil.which(arguments.what):
        print(f"completion in {arguments.what} skipped: it is not here (Debian package {arguments.what})")
        return 77
    with Marud(arguments.marud, size="16MiB", region_bytes="512KiB", more=OTHER_POOL) as marud:
        for tenant in TENANTS:
            said = run(arguments, marud, "quota", "set", tenant, "--soft", "1MiB")
            expect(said.returncode == 0, f"quota set {tenant}: {said.stderr}")
        {"words": with_client, "bash": in_bash, "zsh": in_zsh, "fish": in_fish}[arguments.what](arguments, marud)
    print("\n".join(failures) or f"{arguments.what}: every command, option and value is completed")
    return bool(failures)


if __name__ == "__main__":
    sys.exit(main())
