package faulttest

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/redisdelay/watermill-redisdelay/internal/queue"
)

// Broken is a worker that is broken on purpose, to see that the checker finds out.
type Broken string

const (
	NotBroken Broken = ""
	// TornMove moves what is due in two steps.
	TornMove Broken = "torn move"
	// UnfencedAck acks whatever lease the message has.
	UnfencedAck Broken = "unfenced ack"
	// QuietAck does so too, and then says that it has settled nothing.
	QuietAck Broken = "quiet ack"
	// EarlyDeath takes a message for dead one delivery too early.
	EarlyDeath Broken = "early death"
	// LateRetry has what was nacked wait for six seconds too long.
	LateRetry Broken = "late retry"
	// WholeSeconds rounds due times to seconds.
	WholeSeconds Broken = "whole seconds"
	// ClientClock takes the worker's clock, which is two seconds ahead, for the server's.
	ClientClock Broken = "client clock"
	// ClosesClient closes the client that is its caller's when it closes.
	ClosesClient Broken = "closes the client"
	// HandlesTwice hands each message to two handlers.
	HandlesTwice Broken = "handles twice"
	// LeavesGoroutine leaves a goroutine behind when it closes.
	LeavesGoroutine Broken = "leaves a goroutine"
)

// tamper changes the scripts that a broken worker runs.
type tamper struct {
	broken Broken
	client redis.UniversalClient
	shas   map[string]string // of a script -> of what runs in its place
	timed  map[string]string // sha -> source of a script that takes the time from the caller
}

// edits are what is changed in a script, once each.
var edits = map[Broken]struct {
	script  string
	changes map[string]string
}{
	TornMove: {"promote", map[string]string{
		"each('RPUSH', ready, merged, 1, n)": "each('RPUSH', ready .. ':moving', merged, 1, n)",
	}},
	UnfencedAck: {"ack", map[string]string{unfenced: "if held[i] then"}},
	QuietAck:    {"ack", map[string]string{unfenced: "if held[i] then", "return settled": "return 0"}},
	EarlyDeath:  {"nack", map[string]string{"limit > 0 and count >= limit)": "limit > 0 and count >= limit - 1)"}},
	LateRetry:   {"nack", map[string]string{"due = due_of(delay)": "due = due_of(delay) + 6000"}},
	WholeSeconds: {"publish", map[string]string{
		"return now_up + tonumber(delay)": "return math.floor((now_up + tonumber(delay)) / 1000) * 1000",
	}},
}

const unfenced = "if held[i] == tokens[i] then"

const takesTime = "local t = redis.call('TIME')"

// newTamper loads what runs in the place of scripts. It has a connection of its own.
func newTamper(ctx context.Context, client redis.UniversalClient, broken Broken) (tamper, error) {
	t := tamper{broken: broken, client: client, shas: map[string]string{}, timed: map[string]string{}}
	sources := queue.Scripts()
	switch edit, ok := edits[broken]; {
	case ok:
		source := sources[edit.script]
		changed := source
		for from, to := range edit.changes {
			if !strings.Contains(changed, from) {
				return t, fmt.Errorf("%s.lua has no %q to break", edit.script, from)
			}
			changed = strings.Replace(changed, from, to, 1)
		}
		sha, err := client.ScriptLoad(ctx, changed).Result()
		if err != nil {
			return t, err
		}
		t.shas[queue.ScriptSHA(source)] = sha
	case broken == ClientClock:
		for _, source := range sources {
			if strings.Contains(source, takesTime) {
				t.timed[queue.ScriptSHA(source)] = source
			}
		}
	case broken != NotBroken && broken != ClosesClient && broken != LeavesGoroutine && broken != HandlesTwice:
		return t, fmt.Errorf("nobody knows how to be broken by %q", broken)
	}
	return t, nil
}

// with changes the calls, and returns what is to be done when they are answered.
func (t *tamper) with(cmds []redis.Cmder) func() {
	done := func() {}
	if t.broken == NotBroken {
		return done
	}
	for _, cmd := range cmds {
		args := cmd.Args()
		if len(args) < 3 || args[0] != "evalsha" {
			continue
		}
		sha := textOf(args[1])
		if to, ok := t.shas[sha]; ok {
			if args[1] = to; t.broken == TornMove {
				keys := args[3:]
				done = func() { t.finishMove(keys) }
			}
		}
		if source, ok := t.timed[sha]; ok {
			now := time.Now().Add(2 * time.Second)
			mine := fmt.Sprintf("local t = {'%d', '%d'}", now.Unix(), now.Nanosecond()/1000)
			args[0], args[1] = "eval", strings.Replace(source, takesTime, mine, 1)
		}
	}
	return done
}

// finishMove is the second step of a move that should have had one.
func (t *tamper) finishMove(keys []any) {
	time.Sleep(5 * time.Millisecond)
	for _, key := range keys {
		if ready := textOf(key); strings.Contains(ready, "}:ready:") {
			for t.client.LMove(context.Background(), ready+":moving", ready, "LEFT", "RIGHT").Err() == nil {
			}
		}
	}
}
