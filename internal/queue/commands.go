package queue

import (
	"maps"
	"regexp"
	"slices"
	"strings"
	"sync"
)

var calledCommand = regexp.MustCompile(`(?:redis\.p?call|each)\('([A-Z]+)'`)

var optional = append([]string{"SPUBLISH", "INFO", "PUBSUB"}, Recording...)

// Recording has the commands that only the history of a group needs. Scripts go on without them.
var Recording = []string{"HSTRLEN", "PEXPIRE", "XADD", "XLEN", "XTRIM"}

// commandsOf returns the commands that each script calls, itself or in a snippet.
var commandsOf = sync.OnceValue(func() map[string][]string {
	commands := map[string][]string{}
	for name, source := range Scripts() {
		for _, match := range calledCommand.FindAllStringSubmatch(source, -1) {
			commands[name] = append(commands[name], match[1])
		}
	}
	return commands
})

// Commands returns the commands that scripts call, each once. It leaves out commands of streams,
// which begin with an X, for topics without a stream: the publish script has both. It leaves out
// commands without which scripts do less. SPUBLISH is only for a Cluster that has it. INFO and
// PUBSUB tell which processes are gone. It leaves out those of Recording.
func Commands(scripts ...string) []string {
	streams := slices.ContainsFunc(scripts, func(script string) bool { return strings.HasSuffix(script, "_stream") })
	all := map[string]bool{}
	for _, script := range scripts {
		for _, command := range commandsOf()[script] {
			if needs := !slices.Contains(optional, command) && command[0] != 'X'; needs || streams && command[0] == 'X' {
				all[command] = true
			}
		}
	}
	return slices.Sorted(maps.Keys(all))
}
