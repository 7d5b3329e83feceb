package admin_test

import (
	"errors"
	"fmt"
	"strconv"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	redisdelay "github.com/redisdelay/watermill-redisdelay"
	"github.com/redisdelay/watermill-redisdelay/admin"
	"github.com/redisdelay/watermill-redisdelay/internal/queue"
	"github.com/redisdelay/watermill-redisdelay/internal/redistest"
)

// BenchmarkOperations measures each operation on a topic of a hundred messages and on one of a million: half
// of them pending, the rest ready, and as many dead letters as are ready.
func BenchmarkOperations(b *testing.B) {
	for _, n := range []int{100, 1_000_000} {
		b.Run(strconv.Itoa(n), func(b *testing.B) {
			if n > 100_000 && testing.Short() {
				b.Skip("it takes a while to publish them")
			}
			s := setupOn(b, redistest.Server{Client: redistest.Start(b).Client(b), Prefix: "bench"})
			s.fillBench(b, n)
			for _, op := range operations {
				b.Run(op.name, func(b *testing.B) {
					do := op.prepare(b, s)
					b.ResetTimer()
					for i := range b.N {
						if err := do(i); err != nil {
							b.Fatal(err)
						}
					}
				})
			}
		})
	}
}

// BenchmarkCheck measures Check on a topic of a hundred thousand messages.
func BenchmarkCheck(b *testing.B) {
	s := setupOn(b, redistest.Server{Client: redistest.Start(b).Client(b), Prefix: "bench"})
	const n = 100_000
	s.fillBench(b, n)
	for b.Loop() {
		report, err := s.admin.Check(ctx, topic)
		require.NoError(b, err)
		require.Empty(b, report.Violations())
		require.Equal(b, n, report.Messages)
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/n, "ns/message")
}

// operations are what is measured: prepare returns what is done the i-th time.
var operations = []struct {
	name    string
	prepare func(b *testing.B, s *setup) func(i int) error
}{
	{"Cancel", func(b *testing.B, s *setup) func(int) error {
		s.names(b, b.N)
		return func(i int) error { return s.admin.Cancel(ctx, topic, admin.ByDelayID(strconv.Itoa(i))) }
	}},
	{"Reschedule", func(b *testing.B, s *setup) func(int) error {
		s.names(b, b.N)
		return func(i int) error {
			return s.admin.Reschedule(ctx, topic, admin.ByDelayID(strconv.Itoa(i)), admin.In(time.Hour))
		}
	}},
	{"DeliverNow", func(b *testing.B, s *setup) func(int) error {
		s.names(b, b.N)
		return func(i int) error { return s.admin.DeliverNow(ctx, topic, admin.ByDelayID(strconv.Itoa(i))) }
	}},
	{"PublishReplacing", func(b *testing.B, s *setup) func(int) error {
		p := s.publisher(b)
		return func(int) error {
			msg := delayed("x", time.Hour)
			redisdelay.SetDelayID(msg, "replaced", redisdelay.DelayIDReplace)
			return p.Publish(topic, msg)
		}
	}},
	{"Get", func(b *testing.B, s *setup) func(int) error {
		s.names(b, 1)
		return func(int) error { return only(s.admin.Get(ctx, topic, admin.ByDelayID("0"))) }
	}},
	{"ListPending", func(b *testing.B, s *setup) func(int) error { return s.pages(admin.Pending) }},
	{"ListDead", func(b *testing.B, s *setup) func(int) error { return s.pages(admin.Dead) }},
	{"Stats", func(b *testing.B, s *setup) func(int) error {
		return func(int) error { return only(s.admin.Stats(ctx, topic)) }
	}},
	{"Upcoming100", func(b *testing.B, s *setup) func(int) error {
		return func(int) error {
			return only(s.admin.Upcoming(ctx, topic, admin.Load{Width: time.Minute, Buckets: 100, Group: "a"}))
		}
	}},
	{"RequeueNone", func(b *testing.B, s *setup) func(int) error {
		return func(int) error { // as one that is there is gone then
			if err := s.admin.Requeue(ctx, topic, "a", "unknown"); !errors.Is(err, admin.ErrNotFound) {
				return fmt.Errorf("unexpected: %w", err)
			}
			return nil
		}
	}},
	{"PauseResume", func(b *testing.B, s *setup) func(int) error {
		return func(int) error {
			if err := only(s.admin.Pause(ctx, topic)); err != nil {
				return err
			}
			return only(s.admin.Resume(ctx, topic))
		}
	}},
}

// pages returns what lists a page of 20 messages, each time the next.
func (s *setup) pages(state admin.State) func(int) error {
	cursor := ""
	return func(int) error {
		page, err := s.admin.List(ctx, topic, admin.Query{State: state, Group: "a", Cursor: cursor, Limit: 20})
		cursor = page.Next
		return err
	}
}

func only[T any](_ T, err error) error { return err }

// names publishes messages whose delay IDs are the numbers up to n.
func (s *setup) names(b *testing.B, n int) {
	b.Helper()
	p := s.publisher(b)
	for done := 0; done < n; {
		messages := make([]*message.Message, min(n-done, 1000))
		for i := range messages {
			messages[i] = delayed("x", 2*time.Hour)
			redisdelay.SetDelayID(messages[i], strconv.Itoa(done+i), redisdelay.DelayIDReplace)
		}
		require.NoError(b, p.Publish(topic, messages...))
		done += len(messages)
	}
}

func (s *setup) fillBench(b *testing.B, n int) {
	b.Helper()
	s.register(b, "a")
	p := s.publisher(b)
	for done := 0; done < n; {
		size := min(n-done, 5_000)
		messages := make([]*message.Message, size)
		for i := range messages {
			messages[i] = text("not paid")
			if (done+i)%2 == 0 {
				redisdelay.DelayFor(messages[i], time.Hour+time.Duration(done+i)*10*time.Millisecond)
			}
		}
		require.NoError(b, p.Publish(topic, messages...))
		done += size
	}
	// Half of what is ready dies.
	group := queue.NewTopic(s.Client, s.Prefix, topic).Group("a")
	for number, left := uint64(1), n/4; left > 0; number++ {
		c := queue.Claim{Subscription: "S", Number: number, Limit: min(left, 1000), Lease: time.Hour, Bytes: 1 << 30}
		call := group.ClaimCall(c)
		require.NoError(b, queue.Do(ctx, s.Client, call))
		claimed, err := c.ReadClaim(call)
		require.NoError(b, err)
		var failures []queue.Failure
		for i := range claimed.Messages {
			failures = append(failures, queue.Failure{Leased: &claimed.Messages[i], Dead: true, Reason: "for a reason"})
		}
		require.NoError(b, queue.Do(ctx, s.Client, group.NackCalls(failures, -1)...))
		left -= len(claimed.Messages)
	}
	stats := s.stats(b)
	b.Log(fmt.Sprint(stats.Pending, " pending, ", stats.Groups[0].Ready, " ready, ", stats.Groups[0].Dead, " dead"))
}
