// Package rights says what each kind of work needs of a server, and tries it before the work
// begins.
//
//   - work.go lists the scripts and commands of each kind of work.
//   - permit.go tries them, so that no script fails in its middle for want of a permission.
package rights

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/redis/go-redis/v9"

	"github.com/redisdelay/watermill-redisdelay/internal/queue"
	"github.com/redisdelay/watermill-redisdelay/internal/refusal"
	"github.com/redisdelay/watermill-redisdelay/internal/servers"
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
func (p *Permits) Try(ctx context.Context, t *queue.Topic, work Work) (evicts string, err error) {
	server, _ := t.Master(ctx) // after an error the call below fails too
	this := permit{work.Name, server}
	p.mu.RLock()
	known := p.tried[this]
	p.mu.RUnlock()
	if known {
		return "", nil
	}
	evicts, tried, err := permitted(ctx, t, work)
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

// permitted tries all that the work needs. If there is no such topic and the work does not open it,
// the script tries nothing, and tried is false.
func permitted(ctx context.Context, t *queue.Topic, work Work) (evicts string, tried bool, err error) {
	lacks, keysAllowed, err := tryBesides(ctx, t, work)
	if err != nil {
		return "", false, err
	}
	draft := t.Draft(&queue.PermitScript, queue.Target{}, "nothing", t.Keys().Operation(queue.Token()), "text", t.Keys().Operation(queue.Token()),
		"opens", work.opens)
	for _, command := range work.commands() {
		draft.Each("command", "command", command)
	}
	call := draft.Call()
	if err := queue.Do(ctx, t.Client(), call); err != nil {
		said := (*refusal.Lack)(nil)
		if !errors.As(err, &said) {
			return "", false, err
		}
		lacks.Merge(said)
		if len(said.Absent) == 0 { // no command of scripts could be tried, so all are named
			lacks.Need(rules(work)...)
			if !keysAllowed {
				lacks.Need(refusal.Keys(t.Prefix()))
			}
		}
		return "", false, lacks
	}
	reply, err := call.Cmd().StringSlice()
	if err != nil {
		return "", false, fmt.Errorf("permit: unexpected reply: %w", err)
	}
	for _, part := range reply[min(1, len(reply)):] {
		switch command, verdict, _ := strings.Cut(part, " "); verdict {
		case "forbidden":
			lacks.Need(refusal.Command(command))
		case "absent":
			lacks.Miss(command)
		default:
			return "", false, fmt.Errorf("permit: unexpected reply %q", part)
		}
	}
	if lacks.Any() {
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
func tryBesides(ctx context.Context, t *queue.Topic, work Work) (lacks *refusal.Lack, keysAllowed bool, err error) {
	type try struct {
		args  []any
		rules []string // what its keys and channels need
	}
	var tries []try
	if slices.Contains(work.commands(), "PUBLISH") { // scripts call it, too; no process has the channel
		tries = append(tries, try{[]any{"publish", queue.MailboxChannel(t.Prefix(), "check"), ""}, []string{queue.MailboxRule(t.Prefix())}})
		if t.Client().Cluster() {
			tries = append(tries, try{[]any{"spublish", queue.ShardedMailbox(t.Prefix(), "check", t.Name), ""}, []string{queue.MailboxRule(t.Prefix())}})
		}
	}
	for _, command := range work.besides {
		switch command {
		case "SADD": // the work announces topics, too; no topic is named ""
			tries = append(tries, try{[]any{"publish", queue.NewTopics(t.Prefix(), t.Client().Database()), ""}, []string{queue.TopicsRule(t.Prefix())}})
		case "SISMEMBER":
			if !t.Client().Cluster() { // another node may have the registry
				tries = append(tries, try{[]any{"sismember", queue.Registry(t.Prefix()), ""}, []string{refusal.Keys(t.Prefix())}})
			}
		default:
			if args := notForScripts[command]; args != nil {
				tries = append(tries, try{args: args})
			}
		}
	}
	lacks = &refusal.Lack{}
	if len(tries) == 0 {
		return lacks, false, nil
	}
	calls, err := servers.AskMaster(ctx, t.Client(), t.Key(), func(ctx context.Context, c redis.UniversalClient) (calls []*redis.Cmd, err error) {
		pipe := c.Pipeline()
		for _, try := range tries {
			calls = append(calls, pipe.Do(ctx, try.args...))
		}
		_, err = pipe.Exec(ctx)
		return calls, err
	})
	if servers.Unreachable(err) {
		t.Client().FindNodes(ctx, err)
		return nil, false, err
	}
	for i, call := range calls {
		said := (*refusal.Lack)(nil)
		if !errors.As(refusal.Of(call.Err()), &said) {
			keysAllowed = keysAllowed || call.Name() == "sismember"
			continue
		}
		if call.Name() == "spublish" && len(said.Absent) > 0 {
			continue // Redis 6.2 has no sharded channels, and mailboxes use none there
		}
		said.Explain(call.Name(), tries[i].rules...)
		lacks.Merge(said)
	}
	return lacks, keysAllowed, nil
}

// rules returns the ACL rules that allow all scripts of the work, and their commands.
func rules(work Work) []string {
	all := []string{"+evalsha", "+eval", "+script|load"}
	for _, command := range work.commands() {
		all = append(all, refusal.Command(command))
	}
	return all
}
