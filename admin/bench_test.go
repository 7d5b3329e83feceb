package admin_test

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	redisdelay "github.com/redisdelay/watermill-redisdelay"
	"github.com/redisdelay/watermill-redisdelay/admin"
	"github.com/redisdelay/watermill-redisdelay/internal/queue"
	"github.com/redisdelay/watermill-redisdelay/internal/servers"
	"github.com/redisdelay/watermill-redisdelay/internal/test/redistest"
)

// BenchmarkOperations measures each operation on a topic of a hundred messages and on one of a
// million. Half of them are waiting, the rest ready, and there are as many dead letters as ready
// messages.
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
			began := time.Now()
			require.NoError(b, only(s.admin.DeleteTopic(ctx, topic, admin.DeleteOptions{})))
			b.Log("DeleteTopic of all that took ", time.Since(began))
		})
	}
}

// BenchmarkCheck measures Check on topics of many messages: each takes as long, however many there
// are.
func BenchmarkCheck(b *testing.B) {
	for _, n := range []int{100_000, 400_000} {
		b.Run(strconv.Itoa(n), func(b *testing.B) {
			if n > 100_000 && testing.Short() {
				b.Skip("it takes a while")
			}
			s := setupOn(b, redistest.Server{Client: redistest.Start(b).Client(b), Prefix: "bench"})
			s.fillBench(b, n)
			for b.Loop() {
				report, err := s.admin.Check(ctx, topic)
				require.NoError(b, err)
				require.Empty(b, report.Violations())
				require.Equal(b, n, report.Messages)
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(n), "ns/message")
		})
	}
}

// BenchmarkCheckOfGroups measures Check where each of 20 messages is ready in all groups.
func BenchmarkCheckOfGroups(b *testing.B) {
	for _, groups := range []int{50, 500, 5000} {
		b.Run(strconv.Itoa(groups), func(b *testing.B) {
			s := setupOn(b, redistest.Server{Client: redistest.Start(b).Client(b), Prefix: "bench"})
			s.registerMany(b, groups)
			p := s.publisher(b)
			for range 20 { // of more at once, a scheduler would have to move some
				require.NoError(b, p.Publish(topic, text("x")))
			}
			for b.Loop() {
				report, err := s.admin.Check(ctx, topic)
				require.NoError(b, err)
				require.Empty(b, report.Violations())
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(groups), "ns/group")
		})
	}
}

// BenchmarkCheckOfLargeMessages measures for how long the longest step of Check stops the server,
// with a thousand bodies of 256 KiB.
func BenchmarkCheckOfLargeMessages(b *testing.B) {
	s := setupOn(b, redistest.Server{Client: redistest.Start(b).Client(b), Prefix: "bench"})
	s.register(b, "a")
	p := s.publisher(b)
	for range 1000 {
		msg := text("large")
		msg.Payload = make([]byte, 256<<10)
		require.NoError(b, p.Publish(topic, msg))
	}
	var longest atomic.Int64
	s.Client.AddHook(redistest.Hook(func(_ context.Context, _ []redis.Cmder, next func() error) error {
		began := time.Now()
		defer func() { longest.Store(max(longest.Load(), int64(time.Since(began)))) }()
		return next()
	}))
	for b.Loop() {
		require.NoError(b, only(s.admin.Check(ctx, topic)))
	}
	b.ReportMetric(float64(time.Duration(longest.Load()).Microseconds())/1000, "ms/longest-step")
}

// operations are the measured operations: prepare returns the i-th call. All operations of Admin
// are here, except those on a whole topic. Operations on many messages are measured on a hundred.
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
	{"Reschedule to now", func(b *testing.B, s *setup) func(int) error {
		s.names(b, b.N)
		return func(i int) error {
			return s.admin.Reschedule(ctx, topic, admin.ByDelayID(strconv.Itoa(i)), admin.When{})
		}
	}},
	{"CancelAll100", func(b *testing.B, s *setup) func(int) error {
		return s.onNamed(b, s.admin.CancelAll, admin.Bulk{})
	}},
	{"RescheduleAll100", func(b *testing.B, s *setup) func(int) error {
		return s.onNamed(b, s.admin.RescheduleAll, admin.Bulk{By: time.Hour})
	}},
	{"PublishReplacing", func(b *testing.B, s *setup) func(int) error { return s.publishing(b, redisdelay.DelayIDReplace) }},
	{"PublishKeeping", func(b *testing.B, s *setup) func(int) error { return s.publishing(b, redisdelay.DelayIDKeep) }},
	{"PublishRejecting", func(b *testing.B, s *setup) func(int) error { return s.publishing(b, redisdelay.DelayIDReject) }},
	{"PublishLimited", func(b *testing.B, s *setup) func(int) error {
		p := s.publisher(b, func(c *redisdelay.PublisherConfig) { c.MaxWaiting = 1 << 30 })
		return func(int) error { return p.Publish(topic, delayed("x", time.Hour)) }
	}},
	{"History", func(b *testing.B, s *setup) func(int) error {
		require.NoError(b, s.subscriber(b, "a", func(c *redisdelay.SubscriberConfig) { c.HistoryRetention = time.Hour }).SubscribeInitialize(topic))
		s.names(b, 100)
		for i := range 100 {
			require.NoError(b, s.admin.Cancel(ctx, topic, admin.ByDelayID(strconv.Itoa(i))))
		}
		return func(int) error { return only(s.admin.History(ctx, topic, admin.HistoryFilter{})) }
	}},
	{"SetPartitions", func(b *testing.B, s *setup) func(int) error {
		return func(int) error { return only(s.admin.SetPartitions(ctx, "partitioned", 12)) }
	}},
	{"Plain", func(b *testing.B, s *setup) func(int) error {
		return func(int) error { return only(s.admin.Plain(ctx, "partitioned")) }
	}},
	{"Get", func(b *testing.B, s *setup) func(int) error {
		s.names(b, 1)
		return func(int) error { return only(s.admin.Get(ctx, topic, admin.ByDelayID("0"))) }
	}},
	{"ListPending", func(b *testing.B, s *setup) func(int) error { return s.pages(admin.Waiting) }},
	{"ListReady", func(b *testing.B, s *setup) func(int) error { return s.pages(admin.Ready) }},
	{"ListDead", func(b *testing.B, s *setup) func(int) error { return s.pages(admin.Dead) }},
	{"Stats", func(b *testing.B, s *setup) func(int) error {
		return func(int) error { return only(s.admin.Stats(ctx, topic)) }
	}},
	{"Ready", func(b *testing.B, s *setup) func(int) error {
		return func(int) error { return only(s.admin.Ready(ctx, topic)) }
	}},
	{"Topics", func(b *testing.B, s *setup) func(int) error {
		return func(int) error {
			_, _, err := s.admin.Topics(ctx, "", 100)
			return err
		}
	}},
	{"Overview100", func(b *testing.B, s *setup) func(int) error {
		sub := s.subscriber(b, "a")
		for i := range 100 {
			require.NoError(b, sub.SubscribeInitialize(strconv.Itoa(i)))
		}
		return func(int) error {
			_, _, err := s.admin.Overview(ctx, "", 1000)
			return err
		}
	}},
	{"Kill", func(b *testing.B, s *setup) func(int) error { // one that waits: ready is searched in steps
		s.names(b, b.N)
		return func(i int) error {
			m, err := s.admin.Get(ctx, topic, admin.ByDelayID(strconv.Itoa(i)))
			return errors.Join(err, only(s.admin.Kill(ctx, topic, admin.GroupMessage{Group: "a", ID: m.ID}, admin.KillOptions{})))
		}
	}},
	{"Diagnose", func(b *testing.B, s *setup) func(int) error {
		return func(int) error { return only(s.admin.Diagnose(ctx, admin.DiagnoseOptions{Topics: []string{topic}})) }
	}},
	{"Memory", func(b *testing.B, s *setup) func(int) error {
		return func(int) error { return only(s.admin.Memory(ctx, admin.MemoryOptions{Topics: []string{topic}})) }
	}},
	{"Ignore, IgnoredProblems, Unignore", func(b *testing.B, s *setup) func(int) error {
		return func(int) error {
			did, err := s.admin.Ignore(ctx, admin.Ignored{Kind: admin.UnreadGroup, Topic: topic, By: "ann", Why: "it is measured"})
			if err == nil {
				_, err = s.admin.IgnoredProblems(ctx)
			}
			if err == nil {
				err = s.admin.Unignore(ctx, did)
			}
			return err
		}
	}},
	{"Workers100", func(b *testing.B, s *setup) func(int) error {
		for i := range 100 {
			s.subscribe(b, strconv.Itoa(i))
		}
		return func(int) error { return only(s.admin.Workers(ctx, topic)) }
	}},
	{"ReleaseWorker100", func(b *testing.B, s *setup) func(int) error {
		p, sub := s.publisher(b), s.subscriber(b, "a")
		return func(int) error {
			b.StopTimer()
			const held = "held"
			require.NoError(b, sub.SubscribeInitialize(held))
			require.NoError(b, p.Publish(held, messagesOf(100)...))
			c := queue.Claim{Subscription: queue.Token(), Number: 1, Limit: 100, Lease: time.Hour, Bytes: 1 << 30}
			call := queue.NewTopic(servers.MustClient(s.Client), s.Prefix, held).Group("a").ClaimCall(c)
			require.NoError(b, queue.Do(ctx, servers.MustClient(s.Client), call))
			b.StartTimer()
			n, err := s.admin.ReleaseWorker(ctx, admin.Worker{Topic: held, Group: "a", Subscription: c.Subscription})
			b.StopTimer()
			defer b.StartTimer()
			if err == nil && n != 100 {
				err = fmt.Errorf("it released %d", n)
			}
			return errors.Join(err, only(s.admin.DeleteTopic(ctx, held, admin.DeleteOptions{})))
		}
	}},
	{"DeadReasons100", func(b *testing.B, s *setup) func(int) error {
		s.register(b, "reasons")
		s.letters(b, "reasons", 100)
		b.Cleanup(func() { require.NoError(b, only(s.admin.DeleteGroup(ctx, topic, "reasons", admin.DeleteOptions{}))) })
		return func(int) error {
			reasons, err := s.admin.DeadReasons(ctx, topic, admin.Bulk{Group: "reasons"})
			if err == nil && (reasons.Looked != 100) {
				err = fmt.Errorf("there are %+v", reasons)
			}
			return err
		}
	}},
	{"Upcoming100", func(b *testing.B, s *setup) func(int) error {
		return func(int) error {
			return only(s.admin.Upcoming(ctx, topic, admin.Load{Width: time.Minute, Buckets: 100, Group: "a"}))
		}
	}},
	{"Requeue", func(b *testing.B, s *setup) func(int) error {
		ids := s.letters(b, "a", b.N)
		return func(i int) error { return s.admin.Requeue(ctx, topic, admin.GroupMessage{Group: "a", ID: ids[i]}) }
	}},
	{"DeleteDead", func(b *testing.B, s *setup) func(int) error {
		ids := s.letters(b, "a", b.N)
		return func(i int) error { return s.admin.DeleteDead(ctx, topic, admin.GroupMessage{Group: "a", ID: ids[i]}) }
	}},
	{"RequeueAll100", func(b *testing.B, s *setup) func(int) error {
		return s.bulk(b, func(group string) (int, error) { return s.admin.RequeueAll(ctx, topic, admin.Bulk{Group: group}) })
	}},
	{"PurgeDead100", func(b *testing.B, s *setup) func(int) error {
		return s.bulk(b, func(group string) (int, error) { return s.admin.PurgeDead(ctx, topic, admin.Bulk{Group: group}) })
	}},
	{"MoveDead100", func(b *testing.B, s *setup) func(int) error {
		return s.bulk(b, func(group string) (int, error) {
			return s.admin.MoveDead(ctx, topic, admin.Bulk{Group: group, To: "moved"})
		})
	}},
	{"Pause, Resume", func(b *testing.B, s *setup) func(int) error {
		return func(int) error {
			return errors.Join(only(s.admin.Pause(ctx, topic, admin.PauseOptions{})), only(s.admin.Resume(ctx, topic, admin.ResumeOptions{})))
		}
	}},
	{"Pause, Resume of a group", func(b *testing.B, s *setup) func(int) error {
		return func(int) error {
			return errors.Join(only(s.admin.Pause(ctx, topic, admin.PauseOptions{Scope: admin.InGroup("a")})), only(s.admin.Resume(ctx, topic, admin.ResumeOptions{Scope: admin.InGroup("a")})))
		}
	}},
	{"SetLimit, ResetLimit", func(b *testing.B, s *setup) func(int) error {
		return func(int) error {
			return errors.Join(only(s.admin.SetLimit(ctx, topic, "a", admin.Limit{Rate: 50})), only(s.admin.ResetLimit(ctx, topic, "a")))
		}
	}},
	{"SetHistory, ResetHistory", func(b *testing.B, s *setup) func(int) error {
		return func(int) error {
			return errors.Join(only(s.admin.SetHistory(ctx, topic, "a", admin.History{Retention: time.Hour})), only(s.admin.ResetHistory(ctx, topic, "a")))
		}
	}},
	{"Schedules, RunSchedule, PauseSchedule, ResumeSchedule, RemoveSchedule", func(b *testing.B, s *setup) func(int) error {
		return func(int) error { // there is none: each reads the schedules
			errs := []error{only(s.admin.RunSchedule(ctx, topic, "x")), only2(s.admin.PauseSchedule(ctx, topic, "x", admin.PauseOptions{})),
				s.admin.ResumeSchedule(ctx, topic, "x"), only(s.admin.RemoveSchedule(ctx, topic, "x", admin.DeleteOptions{}))}
			for _, err := range errs {
				if !errors.Is(err, admin.ErrNotFound) {
					return err
				}
			}
			return only(s.admin.Schedules(ctx, topic))
		}
	}},
	{"Record, Acts, FindActs", func(b *testing.B, s *setup) func(int) error {
		return func(int) error {
			err := s.admin.Record(ctx, admin.Act{By: "ann", Action: "pause", Topic: topic})
			_, _, read := s.admin.Acts(ctx, "", 100)
			return errors.Join(err, read)
		}
	}},
	{"Tail", func(b *testing.B, s *setup) func(int) error { // its first look
		return func(int) error {
			ctx, cancel := context.WithCancel(ctx)
			defer cancel()
			return only(s.admin.Tail(ctx, topic, func(admin.Message) bool { return true }, admin.TailOptions{Began: cancel}))
		}
	}},
	{"AddGroup", func(b *testing.B, s *setup) func(int) error { // one that is there, most often
		return func(int) error { return only(s.admin.AddGroup(ctx, topic, "", admin.GroupSettings{Create: true})) }
	}},
	{"GroupsWithoutSubscribers", func(b *testing.B, s *setup) func(int) error {
		return func(int) error { return only(s.admin.GroupsWithoutSubscribers(ctx, topic, time.Hour)) }
	}},
	{"DeleteIdleGroups", func(b *testing.B, s *setup) func(int) error { // that one is found is another's end
		return func(int) error {
			return only(s.admin.DeleteIdleGroups(ctx, topic, admin.IdleOptions{Idle: time.Minute, DryRun: true}))
		}
	}},
	{"DeleteGroup100", func(b *testing.B, s *setup) func(int) error {
		return s.bulk(b, func(group string) (int, error) {
			removal, err := s.admin.DeleteGroup(ctx, topic, group, admin.DeleteOptions{})
			return removal.Messages, err
		})
	}},
	{"DeleteTopic", func(b *testing.B, s *setup) func(int) error {
		p := s.publisher(b)
		return func(int) error {
			b.StopTimer()
			err := p.Publish("small", text("x"))
			b.StartTimer()
			return errors.Join(err, only(s.admin.DeleteTopic(ctx, "small", admin.DeleteOptions{})))
		}
	}},
}

func TestEveryOperationIsMeasured(t *testing.T) {
	t.Parallel()
	admins := reflect.TypeFor[*admin.Admin]()
	for i := range admins.NumMethod() {
		name := admins.Method(i).Name
		if name == "Check" || name == "Repair" || name == "Find" || name == "Move" || name == "ImportDead" { // BenchmarkCheck, BenchmarkFind, BenchmarkMove; a Publish
			continue
		}
		measured := false
		for _, op := range operations {
			measured = measured || slices.Contains(strings.Split(strings.TrimSuffix(op.name, "100"), ", "), name) ||
				name == "List" && strings.HasPrefix(op.name, "List")
		}
		require.True(t, measured, "BenchmarkOperations lacks %s", name)
	}
}

// publishing publishes under a delay ID that is taken.
func (s *setup) publishing(b *testing.B, mode redisdelay.DelayIDMode) func(int) error {
	p := s.publisher(b)
	return func(int) error {
		msg := delayed("x", time.Hour)
		redisdelay.SetDelayID(msg, "taken", mode)
		if err := p.Publish(topic, msg); !errors.Is(err, redisdelay.ErrExists) {
			return err
		}
		return nil
	}
}

// letters writes dead letters of a group.
func (s *setup) letters(b *testing.B, group string, n int) []string {
	b.Helper()
	body, err := redisdelay.BinaryMarshaler{}.Marshal(topic, text("x"))
	require.NoError(b, err)
	died := float64(time.Now().UnixMilli() - 1)
	source, ids := queue.NewIDs(), make([]string, n)
	p := s.Client.Pipeline()
	for i := range ids {
		ids[i], err = source.Next(time.Now())
		require.NoError(b, err)
		p.HSet(ctx, s.keys.Messages(), ids[i], body)
		p.ZAdd(ctx, s.keys.Dead(group), redis.Z{Score: died, Member: ids[i]})
		p.HSet(ctx, s.keys.Deliveries(group), ids[i], "1 - - for a reason")
		if i%1000 == 999 || i == n-1 {
			_, err = p.Exec(ctx)
			require.NoError(b, err)
		}
	}
	return ids
}

// bulk runs an operation on a hundred dead letters, which are all of a group.
func (s *setup) bulk(b *testing.B, do func(group string) (int, error)) func(int) error {
	return func(i int) error {
		b.StopTimer()
		group := fmt.Sprint("bulk ", i)
		s.register(b, group)
		s.letters(b, group, 100)
		b.StartTimer()
		n, err := do(group)
		b.StopTimer()
		defer b.StartTimer()
		if err == nil && n != 100 {
			err = fmt.Errorf("it did it to %d", n)
		}
		if gone := only(s.admin.DeleteGroup(ctx, topic, group, admin.DeleteOptions{})); gone != nil && !errors.Is(gone, admin.ErrNotFound) {
			return gone
		}
		return err
	}
}

// onNamed returns a function that runs an operation on a hundred waiting messages.
func (s *setup) onNamed(b *testing.B, do func(context.Context, string, admin.Bulk) (int, error), bulk admin.Bulk) func(int) error {
	p := s.publisher(b)
	return func(int) error {
		b.StopTimer()
		const few = "few wait"
		var some []*message.Message
		for range 100 {
			some = append(some, delayed("x", time.Hour))
		}
		require.NoError(b, p.Publish(few, some...))
		b.StartTimer()
		n, err := do(ctx, few, bulk)
		b.StopTimer()
		defer b.StartTimer()
		if err == nil && n != 100 {
			err = fmt.Errorf("it did it to %d", n)
		}
		return errors.Join(err, only(s.admin.DeleteTopic(ctx, few, admin.DeleteOptions{})))
	}
}

// pages returns a function that lists the next page of 20 messages.
func (s *setup) pages(state admin.State) func(int) error {
	cursor := ""
	return func(int) error {
		page, err := s.admin.List(ctx, topic, admin.Query{State: state, Group: "a", Cursor: cursor, Limit: 20})
		cursor = page.Next
		return err
	}
}

func only[T any](_ T, err error) error { return err }

func only2[T, U any](_ T, _ U, err error) error { return err }

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
	// Half of the ready messages become dead.
	group := queue.NewTopic(servers.MustClient(s.Client), s.Prefix, topic).Group("a")
	for number, left := uint64(1), n/4; left > 0; number++ {
		c := queue.Claim{Subscription: "S", Number: number, Limit: min(left, 1000), Lease: time.Hour, Bytes: 1 << 30}
		call := group.ClaimCall(c)
		require.NoError(b, queue.Do(ctx, servers.MustClient(s.Client), call))
		claimed, err := c.ReadClaim(call.Cmd())
		require.NoError(b, err)
		var failures []queue.Failure
		for i := range claimed.Messages {
			failures = append(failures, queue.Failure{Leased: &claimed.Messages[i], Dead: true, Reason: "for a reason"})
		}
		require.NoError(b, queue.Do(ctx, servers.MustClient(s.Client), group.NackCalls(failures)...))
		left -= len(claimed.Messages)
	}
	stats := s.stats(b)
	b.Log(fmt.Sprint(stats.Waiting, " waiting, ", stats.Groups[0].Ready, " ready, ", stats.Groups[0].Dead, " dead"))
}
