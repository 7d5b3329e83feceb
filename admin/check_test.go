package admin_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	redisdelay "github.com/redisdelay/watermill-redisdelay"
	"github.com/redisdelay/watermill-redisdelay/admin"
	"github.com/redisdelay/watermill-redisdelay/internal/queue"
	"github.com/redisdelay/watermill-redisdelay/internal/servers"
	"github.com/redisdelay/watermill-redisdelay/internal/test/queuetest"
	"github.com/redisdelay/watermill-redisdelay/internal/test/redistest"
)

// torn is a topic to be damaged. It has a message in every state of group a; group b has all ready.
type torn struct {
	*setup
	t         *testing.T
	id        map[string]string
	cancelled []admin.Message
}

func newTorn(t *testing.T, s *setup, groups ...string) *torn {
	w := &torn{setup: s, t: t, id: map[string]string{}}
	s.register(t, groups...)
	p := s.publisher(t)
	publish := func(name string, d time.Duration) {
		msg := delayed(name, d)
		redisdelay.SetDelayID(msg, name, redisdelay.DelayIDReplace)
		redisdelay.SetMaxDeliveries(msg, 3)
		require.NoError(t, p.Publish(topic, msg))
	}
	for _, name := range []string{"dead", "retrying", "in_hand", "ready"} {
		publish(name, 0)
	}
	publish("waiting", time.Hour)
	group := queue.NewTopic(servers.MustClient(s.Client), s.Prefix, topic).Group("a")
	c := queue.Claim{Subscription: "S", Number: 1, Limit: 3, Lease: time.Hour, Bytes: 1 << 20}
	call := group.ClaimCall(c)
	require.NoError(t, queue.Do(ctx, servers.MustClient(s.Client), call))
	claimed, err := c.ReadClaim(call.Cmd())
	require.NoError(t, err)
	require.Len(t, claimed.Messages, 3)
	require.NoError(t, queue.Do(ctx, servers.MustClient(s.Client), group.NackCalls([]queue.Failure{
		{Leased: &claimed.Messages[0], Dead: true, Reason: "it died"},
		{Leased: &claimed.Messages[1], Limit: 3, Retry: queue.In(time.Hour)},
	})...))
	for _, state := range []admin.State{admin.Waiting, admin.Ready, admin.InHand, admin.Retrying, admin.Dead} {
		for _, m := range s.list(t, "a", state) {
			w.id[string(m.Payload)] = m.ID
		}
	}
	require.Len(t, w.id, 5)
	return w
}

// Progress goes up to all entries, and counts what was mended.
func TestCheckAndRepairTellTheirProgress(t *testing.T) {
	both(t, func(t *testing.T, s *setup) {
		w := newTorn(t, s, "a", "b")
		require.NoError(t, s.Client.HDel(ctx, s.keys.Deliveries("a"), w.id["dead"], w.id["retrying"]).Err())
		var told []admin.Progress
		report, err := s.admin.Check(ctx, topic, func(p admin.Progress) { told = append(told, p) })
		require.NoError(t, err)
		require.NotEmpty(t, report.Violations())
		last := told[len(told)-1]
		require.Greater(t, len(told), 5)
		require.Greater(t, last.Looked, report.Messages)
		require.Zero(t, last.Done)
		for i := range told[1:] {
			require.GreaterOrEqual(t, told[i+1].Looked, told[i].Looked)
		}
		repaired, err := s.admin.Repair(ctx, topic, func(p admin.Progress) { last = p })
		require.NoError(t, err)
		require.NotEmpty(t, repaired.Mended)
		require.Equal(t, len(repaired.Mended), last.Done)
		require.Positive(t, last.Looked)
	})
}

// tear is a damage, the finding of Check, and whether Repair mends it. After Repair, neither Check
// nor the checker of this project's tests finds anything.
type tear struct {
	name   string
	damage func(w *torn, c redis.UniversalClient) error
	kinds  []string
	left   bool // it is not mended
	then   string
}

func both2(f func(w *torn, p redis.Pipeliner)) func(*torn, redis.UniversalClient) error {
	return func(w *torn, c redis.UniversalClient) error {
		_, err := c.TxPipelined(ctx, func(p redis.Pipeliner) error { f(w, p); return nil })
		return err
	}
}

var tears = []tear{
	{"body of a waiting message is gone", both2(func(w *torn, p redis.Pipeliner) {
		p.HDel(ctx, w.keys.Messages(), w.id["waiting"])
	}), []string{"no body"}, false, "forgotten"},
	{"body of a leased message is gone", both2(func(w *torn, p redis.Pipeliner) {
		p.HDel(ctx, w.keys.Messages(), w.id["in_hand"])
	}), []string{"no body"}, false, "forgotten"},
	{"body of a dead message is gone", both2(func(w *torn, p redis.Pipeliner) {
		p.HDel(ctx, w.keys.Messages(), w.id["dead"])
	}), []string{"no body"}, false, "forgotten"},
	{"body of a retried message is gone", both2(func(w *torn, p redis.Pipeliner) {
		p.HDel(ctx, w.keys.Messages(), w.id["retrying"])
	}), []string{"no body"}, false, "forgotten"},
	{"the key of what waits is gone", both2(func(w *torn, p redis.Pipeliner) {
		p.Del(ctx, w.keys.Pending())
	}), []string{"lost"}, false, "waiting due again"},
	{"retry is gone", both2(func(w *torn, p redis.Pipeliner) {
		p.Del(ctx, w.keys.Retry("a"))
	}), []string{"lost"}, false, "retrying due again"},
	{"ready is gone", both2(func(w *torn, p redis.Pipeliner) {
		p.Del(ctx, w.keys.Ready("a"))
	}), []string{"lost"}, false, "ready due again"},
	{"leased message has no lease", both2(func(w *torn, p redis.Pipeliner) {
		p.Del(ctx, w.keys.Leases("a"))
	}), []string{"lease"}, false, "in_hand due again"},
	{"leased message has no deadline", both2(func(w *torn, p redis.Pipeliner) {
		p.Del(ctx, w.keys.Unack("a"))
	}), []string{"lease", "lost"}, false, "in_hand due again"},
	{"waiting message has a deadline", both2(func(w *torn, p redis.Pipeliner) {
		p.ZAdd(ctx, w.keys.Unack("a"), redis.Z{Score: 3e12, Member: w.id["waiting"]})
	}), []string{"lease", "two states"}, false, ""},
	{"message is leased and retried", both2(func(w *torn, p redis.Pipeliner) {
		p.ZAdd(ctx, w.keys.Retry("a"), redis.Z{Score: 3e12, Member: w.id["in_hand"]})
		p.HSet(ctx, w.keys.Deliveries("a"), w.id["in_hand"], "1 - -")
	}), []string{"two states"}, false, ""},
	{"message is retried and dead", both2(func(w *torn, p redis.Pipeliner) {
		p.ZAdd(ctx, w.keys.Dead("a"), redis.Z{Score: 1e12, Member: w.id["retrying"]})
	}), []string{"two states"}, false, ""},
	{"message is ready and dead", both2(func(w *torn, p redis.Pipeliner) {
		p.ZAdd(ctx, w.keys.Dead("a"), redis.Z{Score: 3e12, Member: w.id["ready"]})
		p.HSet(ctx, w.keys.Deliveries("a"), w.id["ready"], "1 - - x")
	}), []string{"two states"}, true, ""},
	{"message is waiting and retried", both2(func(w *torn, p redis.Pipeliner) {
		p.ZAdd(ctx, w.keys.Retry("a"), redis.Z{Score: 3e12, Member: w.id["waiting"]})
		p.HSet(ctx, w.keys.Deliveries("a"), w.id["waiting"], "1 - -")
	}), []string{"two states"}, true, ""},
	{"retry without a record of deliveries", both2(func(w *torn, p redis.Pipeliner) {
		p.HDel(ctx, w.keys.Deliveries("a"), w.id["retrying"])
	}), []string{"record"}, false, ""},
	{"dead letter without a record of deliveries", both2(func(w *torn, p redis.Pipeliner) {
		p.HDel(ctx, w.keys.Deliveries("a"), w.id["dead"])
	}), []string{"record"}, false, ""},
	{"record of deliveries of no message", both2(func(w *torn, p redis.Pipeliner) {
		p.HSet(ctx, w.keys.Deliveries("a"), "01ARZ3NDEKTSV4RRFFQ69G5FAV", "1 - -")
	}), []string{"no body"}, false, ""},
	{"suspect without a record of deliveries", both2(func(w *torn, p redis.Pipeliner) {
		p.HSet(ctx, w.keys.Suspects("a"), w.id["ready"], "2 - S:1:1")
	}), []string{"record"}, false, ""},
	{"suspect in hand without a record of deliveries", both2(func(w *torn, p redis.Pipeliner) {
		p.HSet(ctx, w.keys.Suspects("a"), w.id["in_hand"], "2 alone -")
	}), []string{"record"}, false, ""},
	{"suspect of no message", both2(func(w *torn, p redis.Pipeliner) {
		p.HSet(ctx, w.keys.Suspects("a"), "01ARZ3NDEKTSV4RRFFQ69G5FAV", "1 - S:1:1")
	}), []string{"no body"}, false, ""},
	{"suspect that is dead", both2(func(w *torn, p redis.Pipeliner) {
		p.HSet(ctx, w.keys.Suspects("a"), w.id["dead"], "1 - S:1:1")
	}), []string{"record"}, false, ""},
	{"suspect that waits for a retry", both2(func(w *torn, p redis.Pipeliner) {
		p.HSet(ctx, w.keys.Suspects("a"), w.id["retrying"], "1 - S:1:1")
	}), []string{"record"}, false, ""},
	{"options of no message", both2(func(w *torn, p redis.Pipeliner) {
		p.HSet(ctx, w.keys.Options(), "01ARZ3NDEKTSV4RRFFQ69G5FAV", "max_deliveries:1")
	}), []string{"no body"}, false, ""},
	{"refs of no message", both2(func(w *torn, p redis.Pipeliner) {
		p.HSet(ctx, w.keys.Refs(), "01ARZ3NDEKTSV4RRFFQ69G5FAV", 2)
	}), []string{"no body"}, false, ""},
	{"delay ID that is free and waits", both2(func(w *torn, p redis.Pipeliner) {
		p.HDel(ctx, w.keys.Names(), "waiting")
		p.ZRem(ctx, w.keys.Taken(), "waiting")
	}), []string{"delay id"}, false, ""},
	{"delay ID of another", both2(func(w *torn, p redis.Pipeliner) {
		p.HSet(ctx, w.keys.Names(), "waiting", w.id["dead"])
	}), []string{"delay id"}, true, ""},
	{"delay ID in names only", both2(func(w *torn, p redis.Pipeliner) {
		p.HSet(ctx, w.keys.Names(), "x", w.id["waiting"])
	}), []string{"delay id"}, false, ""},
	{"delay ID in taken only", both2(func(w *torn, p redis.Pipeliner) {
		p.ZAdd(ctx, w.keys.Taken(), redis.Z{Score: 3e12, Member: "x"})
	}), []string{"delay id"}, false, ""},
	{"scheduler that does not look", both2(func(w *torn, p redis.Pipeliner) {
		p.HDel(ctx, w.keys.Scheduler(), "next")
	}), []string{"scheduler"}, false, ""},
	{"scheduler that looks too late", both2(func(w *torn, p redis.Pipeliner) {
		p.HSet(ctx, w.keys.Scheduler(), "next", "3000000000000")
	}), []string{"scheduler"}, false, ""},
	{"key that expires", both2(func(w *torn, p redis.Pipeliner) {
		p.Expire(ctx, w.keys.Messages(), time.Hour)
	}), []string{"key"}, false, ""},
	{"topic that is not in the registry", both2(func(w *torn, p redis.Pipeliner) {
		p.SRem(ctx, queue.Registry(w.Prefix), topic)
	}), []string{"registry"}, false, ""},
	{"key of a wrong type", both2(func(w *torn, p redis.Pipeliner) {
		p.Del(ctx, w.keys.Dead("a"))
		p.Set(ctx, w.keys.Dead("a"), "x", 0)
	}), []string{"key"}, true, ""},
	{"message is ready twice", func(w *torn, c redis.UniversalClient) error {
		return c.RPush(ctx, w.keys.Ready("a"), c.LRange(ctx, w.keys.Ready("a"), -1, -1).Val()[0]).Err()
	}, []string{"repeated"}, false, ""},
	{"entry of ready that is none", both2(func(w *torn, p redis.Pipeliner) {
		p.RPush(ctx, w.keys.Ready("a"), "nonsense")
	}), []string{"key"}, true, ""},
}

func TestTornStateIsFoundAndMended(t *testing.T) {
	t.Parallel()
	for _, tear := range tears {
		t.Run(tear.name, func(t *testing.T) {
			t.Parallel()
			redistest.Both(t, func(t *testing.T, s redistest.Server) {
				w := newTorn(t, setupOn(t, s), "a")
				report, err := w.admin.Check(ctx, topic)
				require.NoError(t, err)
				require.Empty(t, report.Violations(), "whole before")
				require.Equal(t, 5, report.Messages)
				require.NoError(t, tear.damage(w, s.Client))

				repaired, err := w.admin.Repair(ctx, topic)
				require.NoError(t, err)
				var kinds []string
				for _, f := range repaired.Violations() {
					require.NotEmpty(t, f.Detail)
					kinds = append(kinds, f.Kind)
				}
				require.ElementsMatch(t, tear.kinds, compact(kinds), "%v", repaired.Violations())
				require.Zero(t, repaired.Unconfirmed)
				if tear.left {
					require.NotEmpty(t, repaired.Left)
					return
				}
				require.NotEmpty(t, repaired.Mended)
				for _, m := range repaired.Mended {
					require.NotEmpty(t, m.Done, m.Finding)
				}
				report, err = w.admin.Check(ctx, topic)
				require.NoError(t, err)
				require.Empty(t, report.Violations())
				queuetest.Check(t, s.Client, s.Prefix)
				if name, ok := strings.CutSuffix(tear.then, " due again"); ok {
					m, err := w.admin.Get(ctx, topic, admin.ByID(w.id[name]))
					require.NoError(t, err)
					require.Equal(t, admin.Retrying, m.Places[0].State)
					require.False(t, m.Places[0].At.After(w.stats(t).Now))
				}
				if tear.then == "forgotten" {
					require.Equal(t, 4, w.stats(t).Messages)
				}
			})
		})
	}
}

func compact(kinds []string) (some []string) {
	seen := map[string]bool{}
	for _, k := range kinds {
		if !seen[k] {
			some = append(some, k)
		}
		seen[k] = true
	}
	return some
}

// Without a group there is no list in which the message could be.
func TestLostMessageOfATopicWithoutGroupsIsMended(t *testing.T) {
	both(t, func(t *testing.T, s *setup) {
		require.NoError(t, s.publisher(t).Publish(topic, delayed("x", time.Hour)))
		id := s.list(t, "", admin.Waiting)[0].ID
		require.NoError(t, s.Client.ZRem(ctx, s.keys.Pending(), id).Err())
		repaired, err := s.admin.Repair(ctx, topic)
		require.NoError(t, err)
		require.Len(t, repaired.Mended, 1, "%v", repaired.Left)
		require.Equal(t, "lost", repaired.Mended[0].Kind)
		report, err := s.admin.Check(ctx, topic)
		require.NoError(t, err)
		require.Empty(t, report.Violations())
		msg := receive(t, s.subscribe(t, "a"))
		require.Equal(t, "x", string(msg.Payload))
		msg.Ack()
	})
}

// No script scans ready, so the claim that reaches the entry drops it.
func TestReadyEntryWithoutABodyIsDroppedByTheNextClaim(t *testing.T) {
	both(t, func(t *testing.T, s *setup) {
		w := newTorn(t, s, "a")
		require.NoError(t, s.Client.HDel(ctx, s.keys.Messages(), w.id["ready"]).Err())
		repaired, err := s.admin.Repair(ctx, topic)
		require.NoError(t, err)
		require.Len(t, repaired.Violations(), 2, "in ready, and with options")
		messages := s.subscribe(t, "a")
		require.NoError(t, s.publisher(t).Publish(topic, text("x")))
		receive(t, messages).Ack()
		report, err := s.admin.Check(ctx, topic)
		require.NoError(t, err)
		require.Empty(t, report.Violations())
	})
}

// A message in several groups has a count of the groups that still need it.
func TestTornCountsOfGroupsAreFound(t *testing.T) {
	t.Parallel()
	for name, tear := range map[string]struct {
		damage func(w *torn, c redis.UniversalClient) error
		mended bool
	}{
		"more are counted than have it": {both2(func(w *torn, p redis.Pipeliner) {
			p.HSet(ctx, w.keys.Refs(), w.id["dead"], 3)
		}), false},
		"fewer are counted than have it": {both2(func(w *torn, p redis.Pipeliner) {
			p.HDel(ctx, w.keys.Refs(), w.id["ready"])
		}), true},
		"none are counted, and both have it, in retry and ready": {both2(func(w *torn, p redis.Pipeliner) {
			p.HDel(ctx, w.keys.Refs(), w.id["retrying"])
		}), true},
		"fewer are counted than have it in hand or retry": {both2(func(w *torn, p redis.Pipeliner) {
			p.ZAdd(ctx, w.keys.Retry("b"), redis.Z{Score: 3e12, Member: w.id["retrying"]})
			p.HSet(ctx, w.keys.Deliveries("b"), w.id["retrying"], "1 - -")
			p.LRem(ctx, w.keys.Ready("b"), 1, "")
			p.HSet(ctx, w.keys.Refs(), w.id["retrying"], 1)
		}), true},
		"a group has lost it": {both2(func(w *torn, p redis.Pipeliner) {
			p.ZRem(ctx, w.keys.Dead("a"), w.id["dead"])
			p.HDel(ctx, w.keys.Deliveries("a"), w.id["dead"])
		}), false},
		"both have lost it": {both2(func(w *torn, p redis.Pipeliner) {
			p.Del(ctx, w.keys.Ready("a"), w.keys.Ready("b"))
			p.ZRem(ctx, w.keys.Unack("a"), w.id["in_hand"])
			p.HDel(ctx, w.keys.Leases("a"), w.id["in_hand"])
		}), true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			redistest.Both(t, func(t *testing.T, s redistest.Server) {
				w := newTorn(t, setupOn(t, s), "a", "b")
				report, err := w.admin.Check(ctx, topic)
				require.NoError(t, err)
				require.Empty(t, report.Violations(), "whole before")
				require.NoError(t, tear.damage(w, s.Client))
				repaired, err := w.admin.Repair(ctx, topic)
				require.NoError(t, err)
				require.NotEmpty(t, repaired.Violations())
				require.Equal(t, tear.mended, len(repaired.Mended) > 0, "%v", repaired.Violations())
			})
		})
	}
}

func TestServerThatMayLoseMessagesIsReported(t *testing.T) {
	t.Parallel()
	check := func(args ...string) string {
		client := redistest.Start(t, args...).Client(t)
		s := setupOn(t, redistest.Server{Client: client, Prefix: "own"})
		s.register(t, "a")
		report, err := s.admin.Check(ctx, topic)
		require.NoError(t, err)
		require.Empty(t, report.Violations())
		var all []string
		for _, f := range report.Findings {
			require.Equal(t, admin.Warning, f.Severity)
			all = append(all, f.String())
		}
		return strings.Join(all, "\n")
	}
	require.Empty(t, check("--appendonly", "yes", "--maxmemory", "100mb", "--maxmemory-policy", "noeviction"))
	require.Empty(t, check("--appendonly", "yes", "--maxmemory-policy", "allkeys-lru"), "nothing is evicted without a maxmemory")
	said := check("--maxmemory", "100mb", "--maxmemory-policy", "allkeys-lru")
	require.Contains(t, said, "warning: eviction: maxmemory-policy is allkeys-lru: any message may be evicted")
	require.Contains(t, said, "warning: persistence: there is no append-only file")
	require.Contains(t, check("--maxmemory", "100mb", "--maxmemory-policy", "volatile-ttl"), "keys that expire may be evicted")
}

func TestClockDifferenceIsReported(t *testing.T) {
	t.Parallel()
	server := redistest.StartWithClock(t)
	s := setupOn(t, redistest.Server{Client: server.Client(t), Prefix: "own"})
	s.register(t, "a")
	for offset, want := range map[time.Duration]string{time.Hour: "ahead of", -time.Hour: "behind"} {
		server.SetClock(offset)
		report, err := s.admin.Check(ctx, topic)
		require.NoError(t, err)
		found := false
		for _, f := range report.Findings {
			found = found || f.Kind == "clock" && strings.Contains(f.Detail, want)
		}
		require.True(t, found, "%v", report.Findings)
	}
}

// A message that only moves is no violation.
func TestCheckOfALiveTopicFindsNothing(t *testing.T) {
	t.Parallel()
	redistest.Both(t, func(t *testing.T, s redistest.Server) {
		w := setupOn(t, s)
		// The maximum of unacked messages in each group. It bounds the work of Check if consumers
		// are slow.
		open := make(chan struct{}, 1000)
		for _, group := range []string{"a", "b"} {
			messages := w.subscribe(t, group, func(c *redisdelay.SubscriberConfig) {
				c.MaxInFlight = 20
				c.Backoff = func(int) time.Duration { return time.Millisecond }
			})
			go func() {
				for i := 0; ; i++ {
					msg, more := <-messages
					if !more {
						return
					}
					switch i % 7 {
					case 0:
						msg.Nack()
					case 1: // back to the front
						redisdelay.DelayFor(msg, 0)
						msg.Nack()
					default:
						select {
						case <-open:
						default: // it was mended, and never counted
						}
						msg.Ack()
					}
				}
			}()
		}
		p := w.publisher(t)
		stop, done := make(chan struct{}), make(chan error, 1)
		go func() {
			defer close(done)
			for i := 0; ; i++ {
				for range 4 { // two messages in two groups
					select {
					case <-stop:
						return
					case open <- struct{}{}:
					}
				}
				if err := p.Publish(topic, text("now"), delayed("soon", time.Duration(i%5)*time.Millisecond)); err != nil {
					done <- err
					return
				}
			}
		}()
		// A lost message is still found, mended, and delivered.
		repair := func() {
			body, err := redisdelay.BinaryMarshaler{}.Marshal(topic, text("lost"))
			require.NoError(t, err)
			id, err := queue.NewIDs().Next(time.Now())
			require.NoError(t, err)
			require.NoError(t, s.Client.HSet(ctx, w.keys.Messages(), id, body).Err())
			eventually(t, func() bool {
				repaired, err := w.admin.Repair(ctx, topic)
				require.NoError(t, err)
				for _, m := range repaired.Mended {
					require.Equal(t, id, m.MessageID, m.Finding)
				}
				return len(repaired.Mended) == 1
			}, "it is found")
			eventually(t, func() bool {
				there, err := s.Client.HExists(ctx, w.keys.Messages(), id).Result()
				return err == nil && !there
			}, "it is delivered and acked")
		}
		for checks, looked := 0, 0; checks < 10 || looked < 50; checks++ {
			report, err := w.admin.Check(ctx, topic)
			require.NoError(t, err)
			require.Empty(t, report.Violations())
			looked += report.Messages
		}
		repair()
		close(stop)
		require.NoError(t, <-done)
	})
}

func TestCheckReportsThatGroupsChangeTooFast(t *testing.T) {
	both(t, func(t *testing.T, s *setup) {
		s.register(t, "a")
		n := 0
		a := s.afterEachScript(t, func() {
			n++
			s.register(t, fmt.Sprint("group ", n))
		})
		_, err := a.Check(ctx, topic)
		require.ErrorIs(t, err, admin.ErrChanging)
		require.ErrorContains(t, err, topic)
		_, err = a.Repair(ctx, topic)
		require.ErrorIs(t, err, admin.ErrChanging)
	})
}

// The keys of delay IDs, like any other, may be gone when a later step reads them.
func TestCheckOfATopicWhoseLastDelayIDGoesMeanwhile(t *testing.T) {
	both(t, func(t *testing.T, s *setup) {
		for step, steps := 1, 1; step <= steps; step++ {
			msg := delayed("x", time.Hour)
			redisdelay.SetDelayID(msg, "only", redisdelay.DelayIDReject)
			require.NoError(t, s.publisher(t).Publish(topic, msg))
			n := 0
			a := s.afterEachScript(t, func() {
				if n++; n == step {
					require.NoError(t, s.admin.Cancel(ctx, topic, admin.ByDelayID("only")))
				}
			})
			report, err := a.Check(ctx, topic)
			require.NoError(t, err, "cancelled after step %d", step)
			require.Empty(t, report.Violations())
			steps = n
		}
	})
}

// The stream has the topic's own name, and may be anybody's key.
func TestCheckFindsAStreamOfAWrongType(t *testing.T) {
	both(t, func(t *testing.T, s *setup) {
		name := s.Prefix + "-stream"
		p := s.publisher(t, func(c *redisdelay.PublisherConfig) { c.Stream = &redisdelay.StreamConfig{} })
		require.NoError(t, p.Publish(name, text("x")))
		report, err := s.admin.Check(ctx, name)
		require.NoError(t, err)
		require.Empty(t, report.Violations())

		require.NoError(t, s.Client.Del(ctx, name).Err())
		require.NoError(t, s.Client.Set(ctx, name, "x", 0).Err())
		defer s.Client.Del(ctx, name)
		report, err = s.admin.Check(ctx, name)
		require.NoError(t, err)
		require.Len(t, report.Violations(), 1)
		require.Equal(t, "key", report.Violations()[0].Kind)
		require.Equal(t, name+" is a string, not a stream", report.Violations()[0].Detail)
		require.ErrorContains(t, p.Publish(name, text("x")), "the key \""+name+"\" is a string, and has to be a stream: ")
	})
}

// An operator's repair in the middle of a copy mends what is wrong, and leaves the copy alone.
func TestRepairLeavesACopyOfTheWindowAlone(t *testing.T) {
	both(t, func(t *testing.T, s *setup) {
		_, err := s.admin.AddGroup(ctx, topic, "a", admin.GroupSettings{Create: true, TakeoverWindow: time.Hour})
		require.NoError(t, err)
		s.publishMany(t, 2500)
		cutCtx, cut := s.cut(t, 3)
		_, err = cut.AddGroup(cutCtx, topic, "b", admin.GroupSettings{TakeoverWindow: time.Hour})
		require.ErrorIs(t, err, context.Canceled)
		copies := s.Client.ZRange(ctx, s.keys.Idle(), 0, -1).Val()
		copied := s.keys.Ready(copies[slices.IndexFunc(copies, func(name string) bool { return strings.HasSuffix(name, ":b") })])
		had := s.Client.LLen(ctx, copied).Val()
		require.Positive(t, had)
		require.NoError(t, s.Client.HSet(ctx, s.keys.Options(), "nobody's", "retries:3").Err())
		repaired, err := s.admin.Repair(ctx, topic)
		require.NoError(t, err)
		require.Len(t, repaired.Mended, 1, "%v", repaired)
		require.Equal(t, had, s.Client.LLen(ctx, copied).Val())
		added, err := s.admin.AddGroup(ctx, topic, "b", admin.GroupSettings{TakeoverWindow: time.Hour})
		require.NoError(t, err)
		require.Equal(t, 2500, added.TakenOver)
		report, err := s.admin.Check(ctx, topic)
		require.NoError(t, err)
		require.Empty(t, report.Violations())
	})
}
