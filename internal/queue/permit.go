package queue

import (
	"context"
	"errors"
	"fmt"
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

// Try returns an ErrForbidden that names all that the work needs and the server refuses: commands,
// keys and channels that its user may not use, and commands that it does not have. Without it a
// script would fail in its middle, or remove waiting subscriptions and wake none. If there is no
// such topic, it tries no command of scripts, unless the work opens the topic.
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
	evicts, tried, err := t.permit(ctx, work)
	if err != nil || !tried {
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

// permit tries all that the work needs. If there is no such topic and the work does not open it,
// the script tries nothing, and tried is false.
func (t *Topic) permit(ctx context.Context, work Work) (evicts string, tried bool, err error) {
	lacks, keysAllowed, err := t.tryBesides(ctx, work)
	if err != nil {
		return "", false, err
	}
	draft := t.Draft(&permitScript, Target{}, "nothing", t.keys.Operation(Token()), "text", t.keys.Operation(Token()), "opens", work.opens)
	for _, command := range work.commands() {
		draft.Each("command", "command", command)
	}
	call := draft.Call()
	if err := Do(ctx, t.client, call); err != nil {
		said := (*lack)(nil)
		if !errors.As(err, &said) {
			return "", false, err
		}
		lacks.merge(said)
		if len(said.absent) == 0 { // no command of scripts could be tried, so all are named
			lacks.need(rules(work)...)
			if !keysAllowed {
				lacks.need(keyRule(t.prefix))
			}
		}
		return "", false, lacks
	}
	reply, err := call.cmd.StringSlice()
	if err != nil {
		return "", false, fmt.Errorf("permit: unexpected reply: %w", err)
	}
	for _, part := range reply[min(1, len(reply)):] {
		switch command, verdict, _ := strings.Cut(part, " "); verdict {
		case "forbidden":
			lacks.need(rule(command))
		case "absent":
			lacks.miss(command)
		default:
			return "", false, fmt.Errorf("permit: unexpected reply %q", part)
		}
	}
	if lacks.any() {
		return "", false, lacks
	}
	if len(reply) == 0 {
		return "", false, nil
	}
	if evicts = reply[0]; evicts == "noeviction" {
		evicts = ""
	}
	return evicts, true, nil
}

// tryBesides tries the commands of the work that permit.lua cannot try, and without a Cluster the
// key of the registry. It does so in one pipeline to the topic's node. keysAllowed tells that the
// user may surely use the keys.
func (t *Topic) tryBesides(ctx context.Context, work Work) (lacks *lack, keysAllowed bool, err error) {
	type try struct {
		args  []any
		rules []string // what its keys and channels need
	}
	var tries []try
	if slices.Contains(work.commands(), "PUBLISH") { // scripts call it, too; no process has the channel
		tries = append(tries, try{[]any{"publish", MailboxChannel(t.prefix, "check"), ""}, []string{MailboxRule(t.prefix)}})
		if t.client.Cluster() {
			tries = append(tries, try{[]any{"spublish", ShardedMailbox(t.prefix, "check", t.Name), ""}, []string{MailboxRule(t.prefix)}})
		}
	}
	for _, command := range work.besides {
		switch command {
		case "SADD": // the work announces topics, too; no topic is named ""
			tries = append(tries, try{[]any{"publish", t.newTopics(), ""}, []string{TopicsRule(t.prefix)}})
		case "SISMEMBER":
			if !t.client.Cluster() { // another node may have the registry
				tries = append(tries, try{[]any{"sismember", Registry(t.prefix), ""}, []string{keyRule(t.prefix)}})
			}
		default:
			if args := notForScripts[command]; args != nil {
				tries = append(tries, try{args: args})
			}
		}
	}
	lacks = &lack{}
	if len(tries) == 0 {
		return lacks, false, nil
	}
	calls, err := AskMaster(ctx, t.client, t.Key(), func(ctx context.Context, c redis.UniversalClient) (calls []*redis.Cmd, err error) {
		pipe := c.Pipeline()
		for _, try := range tries {
			calls = append(calls, pipe.Do(ctx, try.args...))
		}
		_, err = pipe.Exec(ctx)
		return calls, err
	})
	if Unreachable(err) {
		t.client.findNodes(ctx, err)
		return nil, false, err
	}
	for i, call := range calls {
		said := (*lack)(nil)
		if !errors.As(Refused(call.Err()), &said) {
			keysAllowed = keysAllowed || call.Name() == "sismember"
			continue
		}
		if call.Name() == "spublish" && len(said.absent) > 0 {
			continue // Redis 6.2 has no sharded channels, and mailboxes use none there
		}
		said.explain(call.Name(), tries[i].rules...)
		lacks.merge(said)
	}
	return lacks, keysAllowed, nil
}

// rule returns the ACL rule that allows a command.
func rule(command string) string { return "+" + strings.ToLower(command) }

// keyRule returns the ACL rule that allows all keys with the prefix.
func keyRule(prefix string) string { return "~" + prefix + ":*" }

// MailboxRule returns the ACL rule that allows the channels of all mailboxes.
func MailboxRule(prefix string) string { return "&" + MailboxChannel(prefix, "*") }

// TopicsRule returns the ACL rule that allows the channel of new topics, of any database.
func TopicsRule(prefix string) string { return "&" + prefix + ":new-topics:*" }

// rules returns the ACL rules that allow all scripts of the work, and their commands.
func rules(work Work) []string {
	all := []string{"+evalsha", "+eval", "+script|load"}
	for _, command := range work.commands() {
		all = append(all, rule(command))
	}
	return all
}
