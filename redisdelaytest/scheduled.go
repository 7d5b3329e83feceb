package redisdelaytest

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/redisdelay/watermill-redisdelay/admin"
)

// awaitTimeout is how long methods wait for an expected effect, in real time.
const awaitTimeout = 10 * time.Second

// Scheduled returns the messages of a topic that wait for their due time, in order of it. A topic
// that was never used has none. While the topic has no consumer group, due messages count too,
// because they wait for the first group; redisdelay.Subscriber.SubscribeInitialize creates one.
// Messages that wait for a retry do not count: see AwaitRetrying.
func (s *Server) Scheduled(topic string) []admin.Message {
	return s.list(topic, admin.Query{State: admin.Waiting})
}

func (s *Server) list(topic string, query admin.Query) []admin.Message {
	var all []admin.Message
	query.Limit = 1000
	for {
		page, err := s.admin.List(context.Background(), topic, query)
		if errors.Is(err, admin.ErrNotFound) {
			return all
		}
		if err != nil {
			s.fail(fmt.Errorf("redisdelaytest: %w", err))
		}
		all = append(all, page.Messages...)
		if query.Cursor = page.Next; query.Cursor == "" {
			return all
		}
	}
}

// RequireScheduled returns the scheduled message of the topic that is due at an instant. It fails
// the test unless there is exactly one.
func (s *Server) RequireScheduled(t testing.TB, topic string, due time.Time) admin.Message {
	t.Helper()
	var found []admin.Message
	scheduled := s.Scheduled(topic)
	for _, m := range scheduled {
		if m.Places[0].At.Equal(due) {
			found = append(found, m)
		}
	}
	if len(found) != 1 {
		t.Fatalf("%d messages of topic %q are due at %s, want one; scheduled are:%s", len(found), topic, stamp(due), s.listed(scheduled))
		return admin.Message{}
	}
	return found[0]
}

// RequireNothingScheduled fails the test if Scheduled returns a message for the topic.
func (s *Server) RequireNothingScheduled(t testing.TB, topic string) {
	t.Helper()
	if scheduled := s.Scheduled(topic); len(scheduled) > 0 {
		t.Fatalf("messages of topic %q are scheduled:%s", topic, s.listed(scheduled))
	}
}

// AwaitScheduled waits until Scheduled returns exactly n messages for the topic, and returns them.
// It is for messages that a handler is about to publish. After ten seconds it fails the test.
func (s *Server) AwaitScheduled(t testing.TB, topic string, n int) []admin.Message {
	t.Helper()
	var scheduled []admin.Message
	if !eventually(func() bool { scheduled = s.Scheduled(topic); return len(scheduled) == n }) {
		t.Fatalf("%d messages of topic %q are scheduled, want %d:%s", len(scheduled), topic, n, s.listed(scheduled))
	}
	return scheduled
}

// AwaitRetrying waits until exactly n messages of the topic wait for a retry in a consumer group.
// It returns them in order of their due time. The group "" is redisdelay.DefaultConsumerGroup. It
// is for messages whose handler is about to fail; AdvanceToNext then makes the next one due. After
// ten seconds it fails the test.
func (s *Server) AwaitRetrying(t testing.TB, topic, group string, n int) []admin.Message {
	t.Helper()
	var retrying []admin.Message
	if !eventually(func() bool {
		retrying = s.list(topic, admin.Query{State: admin.Retrying, Group: group})
		return len(retrying) == n
	}) {
		t.Fatalf("%d messages of topic %q wait for a retry in group %q, want %d:%s", len(retrying), topic, group, n, s.listed(retrying))
	}
	return retrying
}

// AwaitDrained waits until all messages of the topic are settled or dead. It also makes the
// consumers report their deliveries and drops, for Stats. After ten seconds it fails the test.
func (s *Server) AwaitDrained(t testing.TB, topic string) {
	t.Helper()
	var left string
	drained := eventually(func() bool {
		stats, err := s.admin.Stats(context.Background(), topic)
		if errors.Is(err, admin.ErrNotFound) {
			return true
		}
		if err != nil {
			left = err.Error()
			return false
		}
		n := stats.Waiting
		left = fmt.Sprintf("%d waiting", stats.Waiting)
		for _, g := range stats.Groups {
			n += g.Ready + g.InHand + g.Retrying
			left += fmt.Sprintf("; group %q: %d ready, %d in hand, %d retrying", g.Group, g.Ready, g.InHand, g.Retrying)
		}
		return n == 0
	})
	if !drained {
		t.Fatalf("topic %q is not drained: %s", topic, left)
	}
	if _, err := s.lookAll(0, false); err != nil {
		t.Fatalf("topic %q is drained: %v", topic, err)
	}
}

// Receive returns the next message of a subscription. After ten seconds without one it fails the
// test.
func (s *Server) Receive(t testing.TB, messages <-chan *message.Message) *message.Message {
	t.Helper()
	timeout := time.NewTimer(awaitTimeout)
	defer timeout.Stop()
	select {
	case msg, open := <-messages:
		if !open {
			t.Fatal("the subscription is closed")
		}
		return msg
	case <-timeout.C:
		t.Fatal("no message came")
		return nil
	}
}

func eventually(is func() bool) bool {
	for end := time.Now().Add(awaitTimeout); !is(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			return false
		}
	}
	return true
}

func (s *Server) listed(messages []admin.Message) string {
	if len(messages) == 0 {
		return " none"
	}
	var b strings.Builder
	for _, m := range messages {
		fmt.Fprintf(&b, "\n  %s, in %v: UUID %q, payload %.100q", stamp(m.Places[0].At), m.Places[0].At.Sub(s.Now()), m.UUID, m.Payload)
	}
	return b.String()
}

func stamp(t time.Time) string { return t.UTC().Format("2006-01-02T15:04:05.000Z") }
