// marudctl completion: scripts that complete its command line in shells. They know no word of it: each asks `marudctl
// completion words` for the next words, so that they cannot lag behind.
#include "daemon/tools/marudctl/completion_words.h"
#include "daemon/tools/marudctl/conversation.h"

#include <cstring>

namespace maru::marudctl {
namespace {

// The offered words are names that clients chose, and the shell reads them as it reads typed text. So each word is quoted for
// the open quote until it stands for itself. A word that no quoting can express is left out.
constexpr const char* kBash = R"BASH(# Completes marudctl in bash; made by `marudctl completion bash`.
_marudctl() {
  local words=() i now typed= is_glued= word plain help
  # bash cuts words at = and :, marudctl does not.
  for ((i = 1; i <= COMP_CWORD; ++i)); do
    typed=${COMP_WORDS[i]}
    if ((i > 1)) && [[ -n $is_glued || $typed == [=:]* ]]; then
      words[${#words[@]}-1]+=$typed
    else
      words+=("$typed")
    fi
    is_glued=
    if [[ $typed == *[=:] ]]; then is_glued=yes; fi
  done
  # The answers replace what bash takes for the word; of it whole they have to lose what stands before.
  now=${words[${#words[@]}-1]}
  local before=${now%"$typed"} quote=
  if [[ $typed == [=:] ]]; then before=$now typed=; fi
  COMPREPLY=()
  # What is typed stands for these characters; a quote that is not at its beginning is not completed.
  if [[ $typed == [\'\"]* ]]; then quote=${typed:0:1} typed=${typed:1}; fi
  now=$before
  while [[ -n $typed ]]; do
    case $quote${typed:0:1} in
      [\'\"] | \'\' | \"\") return ;;
      \\) typed=${typed:1} ;;
      \"\\) if [[ $typed == \\[\\\"\$\`]* ]]; then typed=${typed:1}; fi ;;
    esac
    now+=${typed:0:1} typed=${typed:1}
  done
  words[${#words[@]}-1]=$now
  while IFS=$'\t' read -r word help; do
    if [[ $word == :paths ]]; then
      while IFS= read -r word; do COMPREPLY+=("$word"); done < <(compgen -f -- "${now#"$before"}")
      compopt -o filenames 2>/dev/null
    elif [[ $word == "$now"* ]]; then
      word=${word#"$before"}
      case $quote in
        \') if [[ $word == *\'* ]]; then continue; fi ;;
        \")
          if [[ $word == *!* ]]; then continue; fi
          if [[ $word == *[\\\"\$\`]* ]]; then
            plain=$word word=
            for ((i = 0; i < ${#plain}; ++i)); do
              if [[ ${plain:i:1} == [\\\"\$\`] ]]; then word+=\\; fi
              word+=${plain:i:1}
            done
          fi
          ;;
        *) printf -v word %q "$word" ;;
      esac
      COMPREPLY+=("$word")
    fi
  done < <("${1:-marudctl}" completion words -- "${words[@]}" 2>/dev/null)
}
complete -F _marudctl marudctl
)BASH";

constexpr const char* kZsh = R"(#compdef marudctl
# Completes marudctl in zsh; made by `marudctl completion zsh`.
_marudctl() {
  local line word before= files=
  local -a shown
  local typed="${(Q)PREFIX}"
  local -a said=("${(@f)$(marudctl completion words -- "${(@Q)words[2,CURRENT-1]}" "$typed" 2>/dev/null)}")
  if [[ $typed == --*=* ]]; then
    before=${typed%%=*}=
    compset -P 1 '*='
  fi
  for line in $said; do
    if [[ $line == :paths* ]]; then
      files=yes
    else
      word=${${line%%$'\t'*}#$before}
      word=${word//\\/\\\\}
      shown+=("${word//:/\\:}:${line#*$'\t'}")
    fi
  done
  if (( $#shown )); then _describe 'marudctl' shown; fi
  if [[ -n $files ]]; then _files; fi
}
if [[ $funcstack[1] == _marudctl ]]; then _marudctl "$@"; else compdef _marudctl marudctl; fi
)";

constexpr const char* kFish = R"(# Completes marudctl in fish; made by `marudctl completion fish`.
function __marudctl_words
    set -l words (commandline -opc)
    set -e words[1]
    set -l now (commandline -ct)
    for line in (marudctl completion words -- $words "$now" 2>/dev/null)
        if string match -q ':paths*' -- $line
            __fish_complete_path (string replace -r '^--[a-z-]*=' '' -- "$now")
        else
            echo $line
        end
    end
end
complete -c marudctl -f -a '(__marudctl_words)'
)";

constexpr struct {
  const char* shell;
  const char* script;
} kScripts[] = {{"bash", kBash}, {"zsh", kZsh}, {"fish", kFish}};

}  // namespace

int completion(const Arguments& arguments) {
  const std::string& wanted = arguments.operands.front();
  if (wanted == "words") {
    for (const NextWord& next : next_words({arguments.operands.begin() + 1, arguments.operands.end()}))
      print(next.word + "\t" + next.help + "\n");
    return kExitDone;
  }
  if (arguments.operands.size() > 1)
    return complain(kExitUsage, "completion: found \"" + arguments.operands[1] + "\", expected no more words");
  for (const auto& [shell, script] : kScripts)
    if (wanted == shell) return print(script), kExitDone;
  return complain(kExitUsage, "completion: found \"" + wanted + "\", expected bash, zsh, fish or words");
}

}  // namespace maru::marudctl
