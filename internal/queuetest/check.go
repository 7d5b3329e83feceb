// Package queuetest checks what the pipeline keeps in Redis: that every message is in exactly one
// state of each group, that every index agrees with the others, and that nothing else is left behind.
package queuetest

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"
)

// Check fails the test with a list of all that is wrong with the topics under the prefix.
// It goes on afterwards, so that it can be used where a test cleans up.
//
// Each topic is read in one transaction, so it may be in use meanwhile.
func Check(t testing.TB, client redis.UniversalClient, prefix string) {
	t.Helper()
	topics, found, err := look(context.Background(), client, prefix)
	report(t, prefix, topics, found, err)
}

// Option is for CheckDrained.
type Option func(*drained)

type drained struct {
	live bool
}

// Live allows what a subscription that has not been closed keeps: its last claim, and its place among
// those that are waiting for messages.
func Live() Option { return func(d *drained) { d.live = true } }

// CheckDrained is Check, and also fails the test if a topic holds any message, dead or alive, or any
// trace of one.
func CheckDrained(t testing.TB, client redis.UniversalClient, prefix string, options ...Option) {
	t.Helper()
	var d drained
	for _, option := range options {
		option(&d)
	}
	topics, found, err := look(context.Background(), client, prefix)
	for _, s := range topics {
		found = append(found, d.leftovers(s)...)
	}
	report(t, prefix, topics, found, err)
}

// Violations returns all that is wrong with the topics under the prefix, a line for each.
func Violations(ctx context.Context, client redis.UniversalClient, prefix string) ([]string, error) {
	_, found, err := look(ctx, client, prefix)
	return found, err
}

func look(ctx context.Context, client redis.UniversalClient, prefix string) ([]*snapshot, []string, error) {
	topics, found, err := readAll(ctx, client, prefix)
	if err != nil {
		return nil, nil, err
	}
	for _, s := range topics {
		found = append(found, s.violations()...)
	}
	return topics, found, nil
}

// leftovers lists the keys that a topic without messages does not have.
func (d drained) leftovers(s *snapshot) (left []string) {
	if !s.exists() {
		return nil
	}
	for _, v := range s.values {
		switch v.kind {
		case "meta", "groups", "scheduler", "idle", "publisher", "operation", "paused", "stats":
			continue
		case "claim", "waiters", "resting":
			if d.live {
				continue
			}
		}
		left = append(left, fmt.Sprintf("topic %q is not drained: %s is left: %s", s.topic, v.key, v.summary()))
	}
	return left
}

// shown is how many violations are listed at most: one fault can show in every message.
const shown = 50

func report(t testing.TB, prefix string, topics []*snapshot, found []string, err error) {
	t.Helper()
	if err != nil {
		t.Errorf("queuetest: cannot read the state under %q: %v", prefix, err)
		return
	}
	if len(found) == 0 {
		return
	}
	more := ""
	if n := len(found); n > shown {
		more = fmt.Sprintf("\n  ... and %d more", n-shown)
		found = found[:shown]
	}
	t.Errorf("queuetest: the state under %q (%d topics) is damaged:\n  %s%s",
		prefix, len(topics), strings.Join(found, "\n  "), more)
}
