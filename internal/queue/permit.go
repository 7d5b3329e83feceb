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

// Permits remembers which kinds of work were tried on which servers, so that each is tried once.
// The zero value is ready. Safe for concurrent use.
type Permits struct {
	mu    sync.RWMutex
	tried map[permit]bool
}

// permit is one kind of work on one server, since each node of a Cluster has its own users.
type permit struct{ work, server string }

// Try returns an ErrForbidden that names the commands or channels that the server's user lacks for
// the work. Without it a script would fail in its middle, or remove waiting subscriptions and wake
// none. If there is no such topic, it tries nothing, unless the work opens the topic.
//
// evicts is the server's maxmemory-policy if by that it may evict keys. It is "" if not, if the
// server does not say, or if an earlier Try returned it.
func (p *Permits) Try(ctx context.Context, t *Topic, work Work) (evicts string, err error) {
	server, _ := t.Master(ctx) // after an error the call below fails too
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

// permit tries all commands of the work. If there is no such topic, it tries nothing, and there is
// false.
func (t *Topic) permit(ctx context.Context, work Work) (evicts string, there bool, err error) {
	lacking, err := t.refused(ctx, work)
	if err != nil {
		return "", false, err
	}
	if slices.Contains(lacking, "publish") { // a topic that cannot be announced must not be opened
		return "", false, t.lacks(lacking)
	}
	var args []any
	for _, command := range work.commands() {
		args = append(args, command)
	}
	call := NewCall(&permitScript, []string{t.keys.Meta(), t.keys.Operation(Token())}, args...)
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

// lacks returns the error for commands that are not allowed. Channels are a permission of their
// own.
func (t *Topic) lacks(commands []string) error {
	rules := strings.ToLower("+" + strings.Join(slices.Compact(commands), " +"))
	if slices.Contains(commands, "publish") {
		rules += fmt.Sprintf(", and to wake others, the channels &%s &%s", MailboxChannel(t.prefix, "*"), NewTopics(t.prefix))
	}
	return fmt.Errorf("%w: it has to be allowed %s", ErrForbidden, rules)
}

// refused tries the commands of the work that permit.lua cannot try, in one pipeline to the topic's
// node. So MULTI and EXEC are on one connection, and no transaction stays open.
func (t *Topic) refused(ctx context.Context, work Work) (lacking []string, err error) {
	var tries [][]any
	if slices.Contains(work.commands(), "PUBLISH") { // scripts call it, too; no process has the channel
		tries = append(tries, []any{"publish", MailboxChannel(t.prefix, "check"), ""})
	}
	for _, command := range work.besides {
		if command == "SADD" { // the work announces topics, too; no topic is named ""
			tries = append(tries, []any{"publish", NewTopics(t.prefix), ""})
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
	err = node.Call(func(c redis.UniversalClient) error {
		pipe := c.Pipeline()
		for _, args := range tries {
			calls = append(calls, pipe.Do(ctx, args...))
		}
		_, err := pipe.Exec(ctx)
		return err
	})
	if Unreachable(err) {
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

// ForbiddenTo is Forbidden for a command on the registry or a channel, which may be on another
// node. The error says what the command does, and what the user must be allowed.
func ForbiddenTo(what, command string, err error) error {
	if err = Forbidden(err); errors.Is(err, ErrForbidden) {
		needs := "+" + command
		switch said := err.Error(); {
		case strings.Contains(said, "'cluster"): // the client of a Cluster asks for the slots first
			needs = "+cluster|slots"
		case deniesKeys(said):
			needs = "the keys ~<key prefix>:*"
		}
		return fmt.Errorf("%s: it has to be allowed %s: %w", what, needs, err)
	}
	return err
}

// namedCommand finds the command of a script that is not allowed, which newer servers name.
var namedCommand = regexp.MustCompile(`no permissions to run the '([^']+)' command`)

// deniesKeys tells whether a server's error is about keys. The server does not say which keys.
func deniesKeys(said string) bool {
	return strings.Contains(said, "one of the keys") || strings.Contains(said, "access a key")
}

// forbidden adds to an error what the user must be allowed: keys, or the command of the script. If
// the server names no command, it adds all commands of the script.
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

// patterns returns the ACL patterns for keys: one for the key prefix, and the name of a stream.
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

// Forbidden adds ErrForbidden to an error by which the server refuses for lack of a permission. It
// is for commands that no script can try, and for the script that opens a topic.
func Forbidden(err error) error {
	var server redis.Error
	if !errors.As(err, &server) {
		return err
	}
	code, said, _ := strings.Cut(server.Error(), " ")
	refusedExec := code == "EXECABORT" && strings.Contains(said, "NOPERM")
	inScript := strings.Contains(said, "user executing the script can't") || strings.Contains(said, "ACL failure in script")
	if code == "NOPERM" || refusedExec || inScript {
		return fmt.Errorf("%w: %w", ErrForbidden, err)
	}
	return err
}
