package queue

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"sync"

	"github.com/redis/go-redis/v9"
)

// Permits remembers which works were tried on which servers, so that each is tried once. The zero value is ready. Safe
// for concurrent use.
type Permits struct {
	mu    sync.RWMutex
	tried map[permit]bool
}

// permit is for a work on a server: the nodes of a Cluster have users of their own.
type permit struct{ work, server string }

// Try tells whether the server's user may do the work: ErrForbidden names the commands or the channels that it lacks.
// Else a script would fail in its middle, or take those who wait for messages and wake nobody. evicts is
// maxmemory-policy, if by that the server may evict keys; "" if not, if it does not say, or if that was told before.
// Where there is no such topic, nothing is tried, unless the work opens it.
func (p *Permits) Try(ctx context.Context, t *Topic, work Work) (evicts string, err error) {
	server, _ := t.Master(ctx) // if nobody knows, the call says why
	this := permit{work.Name, server}
	p.mu.RLock()
	known := p.tried[this]
	p.mu.RUnlock()
	if known {
		return "", nil
	}
	evicts, there, err := t.permit(ctx, work)
	if err == nil && !there && work.opens {
		if _, err = t.Groups(ctx); err == nil {
			evicts, there, err = t.permit(ctx, work)
		}
	}
	if err != nil || !there {
		return "", err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.tried[this] {
		return "", nil
	}
	if p.tried == nil {
		p.tried = map[permit]bool{}
	}
	p.tried[this] = true
	return evicts, nil
}

// permit tries all that the work takes. It is not there if there is no such topic: then nothing was tried.
func (t *Topic) permit(ctx context.Context, work Work) (evicts string, there bool, err error) {
	lacking, err := t.refused(ctx, work)
	if err != nil {
		return "", false, err
	}
	if slices.Contains(lacking, "publish") { // a topic that nobody can be told of is not opened
		return "", false, t.lacks(lacking)
	}
	call := t.permitCall(work)
	if err := Do(ctx, t.client, call); err != nil {
		return "", false, err
	}
	reply, err := call.cmd.StringSlice()
	if err != nil {
		return "", false, fmt.Errorf("permit: unexpected reply: %w", err)
	}
	if len(reply) == 0 {
		return "", false, nil
	}
	if lacking = append(reply[1:], lacking...); len(lacking) > 0 {
		return "", false, t.lacks(lacking)
	}
	if evicts = reply[0]; evicts == "noeviction" {
		evicts = ""
	}
	return evicts, true, nil
}

// lacks is the error for commands that are not allowed. Channels are a permission of their own.
func (t *Topic) lacks(commands []string) error {
	rules := strings.ToLower("+" + strings.Join(slices.Compact(commands), " +"))
	if slices.Contains(commands, "publish") {
		rules += fmt.Sprintf(", and to wake others, the channels &%s &%s", MailboxChannel(t.prefix, "*"), NewTopics(t.prefix))
	}
	return fmt.Errorf("%w: it has to be allowed %s", ErrForbidden, rules)
}

func (t *Topic) permitCall(work Work) *Call {
	var args []any
	for _, command := range work.commands() {
		args = append(args, command)
	}
	return &Call{script: &permitScript, keys: []string{t.keys.Meta(), t.keys.Operation(Token())}, args: args}
}

// refused tries those commands of the work that permit.lua does not, in one pipeline to the topic's node: a transaction
// that is begun ends in it, whichever part of that is refused.
func (t *Topic) refused(ctx context.Context, work Work) (lacking []string, err error) {
	var tries [][]any
	if slices.Contains(work.commands(), "PUBLISH") { // in a script, too
		tries = append(tries, []any{"publish", MailboxChannel(t.prefix, "check"), ""}) // no one's
	}
	for _, command := range work.besides {
		if command == "SADD" { // and announces the topic
			tries = append(tries, []any{"publish", NewTopics(t.prefix), ""}) // none has that name
		}
		if args := notForScripts[command]; args != nil {
			tries = append(tries, args)
		}
	}
	if len(tries) == 0 {
		return nil, nil
	}
	node, err := t.node(ctx)
	if err != nil {
		return nil, err
	}
	var calls []*redis.Cmd
	pipe := node.Pipeline()
	for _, args := range tries {
		calls = append(calls, pipe.Do(ctx, args...))
	}
	if _, err := pipe.Exec(ctx); Unreachable(err) {
		t.client.findNodes(ctx, err)
		return nil, err
	}
	for _, call := range calls {
		if errors.Is(Forbidden(call.Err()), ErrForbidden) {
			lacking = append(lacking, call.Name())
		}
	}
	return lacking, nil
}

// ForbiddenTo is Forbidden for a command on the registry or a channel, which may be on a node of
// its own. The error says what the command was to do, and what the user has to be allowed.
func ForbiddenTo(what, command string, err error) error {
	if err = Forbidden(err); errors.Is(err, ErrForbidden) {
		needs := "+" + command
		switch said := err.Error(); {
		case strings.Contains(said, "'cluster"): // the client of a Cluster has to know whom to ask first
			needs = "+cluster|slots"
		case deniesKeys(said):
			needs = "the keys ~<key prefix>:*"
		}
		return fmt.Errorf("%s: it has to be allowed %s: %w", what, needs, err)
	}
	return err
}

// namedCommand is how newer servers say which command of a script is not allowed.
var namedCommand = regexp.MustCompile(`no permissions to run the '([^']+)' command`)

// deniesKeys tells whether a server says by this that the user may not use some of a call's keys. It does not say which.
func deniesKeys(said string) bool {
	return strings.Contains(said, "one of the keys") || strings.Contains(said, "access a key")
}

// forbidden names in an error what the user has to be allowed: keys, or the command of the script,
// or all commands of the script if the server names none.
func (c *Call) forbidden(err error) error {
	err = Forbidden(err)
	switch {
	case !errors.Is(err, ErrForbidden):
		return err
	case deniesKeys(err.Error()):
		return fmt.Errorf("%w; it has to be allowed the keys ~%s", err, strings.Join(patterns(c.keys), " ~"))
	case strings.Contains(err.Error(), "NOPERM"):
		return err
	}
	commands := Work{scripts: []string{c.script.name}}.commands()
	if named := namedCommand.FindStringSubmatch(err.Error()); named != nil {
		commands = named[1:]
	}
	return fmt.Errorf("%w; it has to be allowed +%s", err, strings.ToLower(strings.Join(commands, " +")))
}

// patterns are what an ACL allows for keys: all of the key prefix, and a stream by its name.
func patterns(keys []string) (all []string) {
	for _, key := range keys {
		if prefix, _, ours := strings.Cut(key, ":{"); ours {
			key = prefix + ":*"
		}
		if !slices.Contains(all, key) {
			all = append(all, key)
		}
	}
	return all
}

// Forbidden wraps ErrForbidden in an error of the server that refuses for want of a permission. It
// is for commands that no script can try, and for the script that opens a topic.
func Forbidden(err error) error {
	var server redis.Error
	if !errors.As(err, &server) {
		return err
	}
	code, said, _ := strings.Cut(server.Error(), " ")
	switch {
	case code == "NOPERM":
	case code == "EXECABORT" && strings.Contains(said, "NOPERM"): // an EXEC that is not allowed, which ends the transaction
	case strings.Contains(said, "user executing the script can't"), strings.Contains(said, "ACL failure in script"):
	default:
		return err
	}
	return fmt.Errorf("%w: %w", ErrForbidden, err)
}
