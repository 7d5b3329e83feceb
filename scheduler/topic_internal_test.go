package scheduler

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/redisdelay/watermill-redisdelay/internal/redistest"
)

// Looks that are due at about the same time go together; none waits for another that is not.
func TestNobodyWaitsForALaterLook(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newScheduler(t)
		a, b, c, later := &served{}, &served{}, &served{}, &served{}
		now := time.Now()
		s.look(later, now.Add(together+time.Microsecond))
		s.look(a, now.Add(-time.Second))
		s.look(b, now.Add(-time.Millisecond))
		s.look(c, now)
		first, err := s.crews.first.agenda.Dequeue(t.Context())
		require.NoError(t, err)
		require.True(t, s.begins(first))
		due, at := s.withOthers(s.crews.first, first)
		require.Equal(t, []*served{a, b, c}, due)
		require.Equal(t, now, at, "all are waited for")
		require.Equal(t, 1, s.crews.first.agenda.Len(), "it is somebody else's")
		next, ok := s.crews.first.agenda.TryDequeue()
		require.True(t, ok)
		require.Same(t, later, next.served)
		require.True(t, s.begins(next))
	})
}

func TestASchedulerIsToldWhenToLook(t *testing.T) {
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
			s.told(topic, argument, func() { answered = true })
			require.Equal(t, time.Now().Add(wait), topic.target, argument)
			require.Equal(t, 1, s.crews.first.agenda.Len())
			require.True(t, answered)
		}
	})
}

func newScheduler(t *testing.T) *Scheduler {
	client := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1"})
	t.Cleanup(func() { _ = client.Close() })
	s, err := New(Config{Client: client}, nil)
	require.NoError(t, err)
	t.Cleanup(s.crews.close)
	return s
}

// A topic that is in the registry is served however often it was added and removed, and is not named by that.
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
		for range 2 { // once too often
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
