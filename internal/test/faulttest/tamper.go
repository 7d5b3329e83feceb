package faulttest

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/redisdelay/watermill-redisdelay/internal/queue"
)

// Broken is a deliberate fault of a worker, to test that the checker finds it.
type Broken string

const (
	NotBroken Broken = ""
	// TornMove moves due messages in two steps.
	TornMove Broken = "torn move"
	// UnfencedAck acks a message without a check of its lease.
	UnfencedAck Broken = "unfenced ack"
	// QuietAck does the same, but returns that it has settled nothing.
	QuietAck Broken = "quiet ack"
	// EarlyDeath makes a message dead one delivery too early.
	EarlyDeath Broken = "early death"
	// LateRetry delays nacked messages by six seconds too long.
	LateRetry Broken = "late retry"
	// WholeSeconds rounds due times to seconds.
	WholeSeconds Broken = "whole seconds"
	// ClientClock uses the worker's clock plus two seconds instead of the server's.
	ClientClock Broken = "client clock"
	// ClosesClient closes the caller's client when it closes.
	ClosesClient Broken = "closes the client"
	// HandlesTwice passes each message to two handlers.
	HandlesTwice Broken = "handles twice"
	// LeavesGoroutine leaves a goroutine behind when it closes.
	LeavesGoroutine Broken = "leaves a goroutine"
)

// tamper changes the scripts that a broken worker runs.
type tamper struct {
	broken Broken
	client redis.UniversalClient
	shas   map[string]string // hash of a script -> hash of its replacement
	timed  map[string]string // hash -> source of a script that takes the time from the caller
}

// edits are the changes of scripts. Each text must occur once.
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

// newTamper loads the changed scripts, on a separate connection.
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

// with changes the calls, and returns a function to call when they are answered.
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

// finishMove is the second step of a move that should be one step.
func (t *tamper) finishMove(keys []any) {
	time.Sleep(5 * time.Millisecond)
	for _, key := range keys {
		if ready := textOf(key); strings.Contains(ready, "}:ready:") {
			for t.client.LMove(context.Background(), ready+":moving", ready, "LEFT", "RIGHT").Err() == nil {
			}
		}
	}
}
