package queue

import (
	"context"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"sync"
)

// Work is what a process does with a topic, by the scripts that it takes.
type Work []string

// Publishing and Consuming take these. A scheduler takes those of Consuming that are its own. Topics with a stream
// take others.
var (
	Publishing        = Work{"open", "publish"}
	PublishingStreams = Work{"open_stream", "publish"}
	Scheduling        = Work{"open", "promote", "expire", "purge", "remove", "resign"}
	SchedulingStreams = Work{"open", "promote_stream", "purge", "resign"}
	Consuming         = append(Work{"register", "claim", "ack", "nack", "release", "extend"}, Scheduling...)
)

var calledCommand = regexp.MustCompile(`(?:redis\.p?call|each)\('([A-Z]+)'`)

// commandsOf are the commands of each script.
var commandsOf = sync.OnceValue(func() map[string][]string {
	commands := map[string][]string{}
	for name, source := range Scripts() {
		for _, match := range calledCommand.FindAllStringSubmatch(source, -1) {
			commands[name] = append(commands[name], match[1])
		}
	}
	return commands
})

// commands are those of all the work's scripts, each once. Those of streams, which all begin with an X, are for topics
// that have one: publish has them too.
func (w Work) commands() []string {
	streams := slices.ContainsFunc(w, func(script string) bool { return strings.HasSuffix(script, "_stream") })
	all := map[string]bool{}
	for _, script := range w {
		for _, command := range commandsOf()[script] {
			if streams || command[0] != 'X' {
				all[command] = true
			}
		}
	}
	return slices.Sorted(maps.Keys(all))
}

// Permit tells whether the server's user may do the work: ErrForbidden names the commands or the channel that it lacks.
// Else a script would fail in its middle, or take those who wait for messages and wake nobody. It opens the topic. evicts is maxmemory-policy, if by that the server
// may evict keys; "" if not, or if it does not say.
func (t *Topic) Permit(ctx context.Context, work Work) (evicts string, err error) {
	if err := CheckMailbox(ctx, t.client, t.prefix); err != nil {
		return "", err
	}
	if _, err := t.Groups(ctx); err != nil {
		return "", err
	}
	call := t.permitCall(work)
	if err := Do(ctx, t.client, call); err != nil {
		return "", err
	}
	reply, err := call.cmd.StringSlice()
	if err != nil || len(reply) == 0 {
		return "", fmt.Errorf("permit: unexpected reply %v: %w", reply, err)
	}
	if lacking := reply[1:]; len(lacking) > 0 {
		return "", fmt.Errorf("%w: it has to be allowed %s", ErrForbidden, strings.ToLower("+"+strings.Join(lacking, " +")))
	}
	if evicts = reply[0]; evicts == "noeviction" {
		evicts = ""
	}
	return evicts, nil
}

func (t *Topic) permitCall(work Work) *Call {
	var args []any
	for _, command := range work.commands() {
		args = append(args, command)
	}
	return &Call{script: &permitScript, keys: []string{t.keys.Meta(), t.keys.Operation(Token())}, args: args}
}
