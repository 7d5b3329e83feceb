package scheduler

import (
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/redisdelay/watermill-redisdelay/internal/queue"
	"github.com/redisdelay/watermill-redisdelay/internal/test/redistest"
)

// Promotions due at about the same time share a round trip; none waits for a later one.
func TestPromotionsDueTogetherShareARoundTrip(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newScheduler(t)
		a, b, c, later := &served{}, &served{}, &served{}, &served{}
		now := time.Now()
		s.promoteAt(later, now.Add(together+time.Microsecond))
		s.promoteAt(a, now.Add(-time.Second))
		s.promoteAt(b, now.Add(-time.Millisecond))
		s.promoteAt(c, now)
		first, err := s.pools.first.tasks.Dequeue(t.Context())
		require.NoError(t, err)
		require.True(t, s.begins(first))
		due, at := s.collect(s.pools.first, first)
		require.Equal(t, []*served{a, b, c}, due)
		require.Equal(t, now, at, "the round trip waits for the last")
		require.Equal(t, 1, s.pools.first.tasks.Len(), "the later task stays in the queue")
		next, ok := s.pools.first.tasks.TryDequeue()
		require.True(t, ok)
		require.Same(t, later, next.served)
		require.True(t, s.begins(next))
	})
}

func TestWakeUpSaysWhenToPromote(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for argument, wait := range map[string]time.Duration{
			"":         0,
			"21.305":   21305 * time.Microsecond,
			"21":       21 * time.Millisecond,
			"-3.001":   0,
			"anything": 0,
		} {
			s := newScheduler(t)
			topic, answered := &served{}, false
			s.woken(topic, argument, func(time.Time) { answered = true })
			require.Equal(t, time.Now().Add(wait), topic.target, argument)
			require.Equal(t, 1, s.pools.first.tasks.Len())
			require.True(t, answered)
		}
	})
}

func newScheduler(t *testing.T) *Scheduler {
	client := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1"})
	t.Cleanup(func() { _ = client.Close() })
	s, err := New(Config{Client: client}, nil)
	require.NoError(t, err)
	t.Cleanup(s.pools.close)
	return s
}

// A topic of the registry stays served whatever the number of Adds and Removes.
func TestAddAndRemoveWhereAllTopicsAreServed(t *testing.T) {
	t.Parallel()
	_, client := redistest.Embedded(t)
	s, err := New(Config{Client: client}, nil)
	require.NoError(t, err)
	add := func() { s.Add("topic") }
	find := func() { s.found("topic", false) }
	for _, steps := range [][]func(){{add, find}, {find, add}} {
		for _, step := range steps {
			step()
		}
		require.Positive(t, s.topics["topic"].users)
		for range 2 { // one more than the Adds
			s.Remove("topic")
			require.Contains(t, s.topics, "topic")
			require.Zero(t, s.topics["topic"].users)
		}
		delete(s.topics, "topic")
	}
	add()
	s.Remove("topic")
	require.Empty(t, s.topics)
}

func TestALongWaitIsCutToThePollAndNeverProlonged(t *testing.T) {
	const poll = 5 * time.Second
	for range 1000 {
		require.InDelta(t, poll, untilNext(-1, poll), float64(poll/9), "without an event")
		require.InDelta(t, poll, untilNext(time.Hour, poll), float64(poll/9))
		for _, wait := range []time.Duration{0, time.Millisecond, poll} {
			require.Equal(t, wait, untilNext(wait, poll))
		}
		for _, wait := range []time.Duration{poll + 1, poll * 101 / 100, poll * 105 / 100} {
			require.LessOrEqual(t, untilNext(wait, poll), wait)
		}
	}
}

// lines is a logger that keeps the texts of its lines.
type lines struct {
	watermill.NopLogger
	texts []string
}

func (l *lines) Error(text string, _ error, fields watermill.LogFields) {
	l.texts = append(l.texts, fmt.Sprint(fields["topic"], ": ", text))
}

func (l *lines) Info(text string, fields watermill.LogFields) {
	l.texts = append(l.texts, fmt.Sprint(fields["topic"], ": ", text))
}

func TestAFaultOfOneTopicDoesNotHideAnOutage(t *testing.T) {
	s := newScheduler(t)
	logger := &lines{}
	s.logger = logger
	topics := map[string]*served{}
	for _, name := range []string{"odd", "a", "b"} {
		topics[name] = &served{topic: queue.NewTopic(s.client, "p", name)}
	}
	logs := func(want ...string) {
		t.Helper()
		require.Equal(t, want, logger.texts)
		logger.texts = nil
	}
	fails := func(name string, err error) { s.retry(t.Context(), topics[name], err, time.Hour) }
	for range 2 {
		fails("odd", fmt.Errorf("%w: odd", queue.ErrLayout))
	}
	logs("odd: Cannot promote due messages, trying again")
	for range 2 {
		fails("a", errors.New("connection refused"))
		fails("b", errors.New("connection refused"))
	}
	logs("a: Cannot promote due messages, trying again")
	s.succeeded(topics["b"])
	s.succeeded(topics["a"])
	logs("b: Promoting due messages again")
	s.succeeded(topics["odd"])
	s.succeeded(topics["odd"])
	logs("odd: Promoting due messages again")
}
