// Package queuetest checks the pipeline's data in Redis. Every message must be in exactly one state
// of each group, all indexes must agree, and there must be no other keys.
package queuetest

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/redisdelay/watermill-redisdelay/internal/queue"
	"github.com/redisdelay/watermill-redisdelay/internal/servers"
)

// Check fails the test with a list of all violations in the topics under the prefix. It does not
// end the test, so that it can be used in cleanups.
//
// Each topic is read in one transaction, so it may be in use meanwhile.
func Check(t testing.TB, client redis.UniversalClient, prefix string) {
	t.Helper()
	topics, found, err := inspect(context.Background(), client, prefix)
	report(t, prefix, topics, found, err)
}

// Option is an option of CheckDrained.
type Option func(*drained)

type drained struct {
	live bool
}

// Live allows the keys of subscriptions that are not closed: the last claim, and the entry among
// the waiters.
func Live() Option { return func(d *drained) { d.live = true } }

// CheckDrained does the same as Check, after it has removed the topics' takeover windows, as a
// scheduler does at their end. It also fails the test if a topic has any message, dead letters
// included, or any key about one.
func CheckDrained(t testing.TB, client redis.UniversalClient, prefix string, options ...Option) {
	t.Helper()
	var d drained
	for _, option := range options {
		option(&d)
	}
	if err := EndWindows(context.Background(), client, prefix); err != nil {
		t.Errorf("end the takeover windows: %v", err)
	}
	topics, found, err := inspect(context.Background(), client, prefix)
	for _, s := range topics {
		found = append(found, d.leftovers(s)...)
	}
	report(t, prefix, topics, found, err)
}

// EndWindows removes the takeover windows of the topics under the prefix, before their end.
func EndWindows(ctx context.Context, client redis.UniversalClient, prefix string) error {
	topics, _, err := readAll(ctx, client, prefix)
	for _, s := range topics {
		t := queue.NewTopic(servers.MustClient(client), prefix, s.topic)
		for _, group := range s.groups() {
			if err == nil && queue.IsWindow(group) {
				err = t.Remove(ctx, group)
			}
		}
	}
	return err
}

// Violations returns all violations in the topics under the prefix, one line each.
func Violations(ctx context.Context, client redis.UniversalClient, prefix string) ([]string, error) {
	_, found, err := inspect(ctx, client, prefix)
	return found, err
}

func inspect(ctx context.Context, client redis.UniversalClient, prefix string) ([]*snapshot, []string, error) {
	topics, found, err := readAll(ctx, client, prefix)
	if err != nil {
		return nil, nil, err
	}
	for _, s := range topics {
		found = append(found, s.violations()...)
	}
	return topics, found, nil
}

// leftovers returns the keys that a topic without messages must not have.
func (d drained) leftovers(s *snapshot) (left []string) {
	if !s.exists() {
		return nil
	}
	for _, v := range s.values {
		switch v.kind {
		case "meta", "groups", "scheduler", "idle", "publisher", "operation", "handling", "paused", "resumes", "schedules", "programs", "stats", "counters", "active", "limits", "ended", "history", "restored", "restored_retries",
			"workers": // Close does not wait long for the sign-off, which a busy machine may miss
			continue
		case "claim", "waiters", "resting", "standby", "limited":
			if d.live {
				continue
			}
		}
		left = append(left, fmt.Sprintf("topic %q is not drained: %s is left: %s", s.topic, v.key, v.summary()))
	}
	return left
}

// shown is the maximum number of violations listed, because one fault may affect every message.
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
