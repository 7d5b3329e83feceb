package faults

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	redisdelay "github.com/redisdelay/watermill-redisdelay"
	"github.com/redisdelay/watermill-redisdelay/admin"
	"github.com/redisdelay/watermill-redisdelay/internal/queue"
	"github.com/redisdelay/watermill-redisdelay/internal/servers"
	"github.com/redisdelay/watermill-redisdelay/internal/test/faulttest"
	"github.com/redisdelay/watermill-redisdelay/internal/test/queuetest"
	"github.com/redisdelay/watermill-redisdelay/internal/test/redistest"
	"github.com/redisdelay/watermill-redisdelay/scheduler"
)

// A desk is where an operator works on topic "t", behind a network, while nobody else does. Groups
// a and b have a message that waits, one that is ready, and group a has one that is dead.
type desk struct {
	t      *testing.T
	direct redis.UniversalClient
	client redis.UniversalClient // by way of the network
	keys   queue.Keys
	lost   func() int   // replies so far
	loses  int          // replies in the end
	admin  *admin.Admin // by way of the network
	onlook *admin.Admin
	id     map[string]string // of messages, by their payload

	exported []admin.Message // that an operation took back
}

func newDesk(t *testing.T, server *redistest.Instance, p *faulttest.Proxy) *desk {
	t.Helper()
	d := &desk{t: t, direct: server.Client(t), client: p.Place().Client(), keys: queue.NewKeys(redisdelay.DefaultKeyPrefix, "t"), lost: p.Swallowed, id: map[string]string{}}
	t.Cleanup(func() { _ = d.client.Close() })
	var err error
	d.admin, err = admin.New(admin.Config{Client: d.client})
	require.NoError(t, err)
	d.onlook, err = admin.New(admin.Config{Client: d.direct})
	require.NoError(t, err)
	for _, group := range []string{"a", "b"} {
		d.register(group, time.Hour)
	}
	publisher, err := redisdelay.NewPublisher(redisdelay.PublisherConfig{Client: d.direct}, nil)
	require.NoError(t, err)
	for _, name := range []string{"dead", "ready", "waits"} {
		msg := message.NewMessage(name, []byte(name))
		if name == "waits" {
			redisdelay.DelayFor(msg, time.Hour)
			redisdelay.SetDelayID(msg, name, redisdelay.DelayIDReplace)
		}
		require.NoError(t, publisher.Publish("t", msg))
	}
	require.NoError(t, publisher.Close())
	d.kill("a")
	require.Equal(t, map[string]string{"waits": "waiting", "ready": "ready", "dead": "dead"}, d.states("a"))
	return d
}

func (d *desk) register(group string, retention time.Duration) {
	d.t.Helper()
	config := redisdelay.SubscriberConfig{Client: d.direct, ConsumerGroup: group, DeadRetention: retention}
	require.NoError(d.t, newSubscriber(d.t, config).SubscribeInitialize("t"))
}

// kill has the message die that is the first of a group.
func (d *desk) kill(group string) {
	d.t.Helper()
	g := queue.NewTopic(servers.MustClient(d.direct), redisdelay.DefaultKeyPrefix, "t").Group(group)
	claim := queue.Claim{Subscription: queue.Token(), Number: 1, Limit: 1, Lease: time.Hour, Bytes: 1 << 20}
	call := g.ClaimCall(claim)
	require.NoError(d.t, queue.Do(d.t.Context(), servers.MustClient(d.direct), call))
	claimed, err := claim.ReadClaim(call.Cmd())
	require.NoError(d.t, err)
	require.Len(d.t, claimed.Messages, 1)
	require.NoError(d.t, queue.Do(d.t.Context(), servers.MustClient(d.direct), g.NackCalls([]queue.Failure{{Leased: &claimed.Messages[0], Dead: true, Reason: "it died"}})...))
}

// states are where the messages of a group are, by their payload; of one that is there twice, both.
func (d *desk) states(group string) map[string]string {
	d.t.Helper()
	found := map[string]string{}
	for _, state := range []admin.State{admin.Waiting, admin.Ready, admin.InHand, admin.Retrying, admin.Dead} {
		page, err := d.onlook.List(d.t.Context(), "t", admin.Query{Group: group, State: state})
		if errors.Is(err, admin.ErrNotFound) { // the topic or the group is gone
			return found
		}
		require.NoError(d.t, err)
		for _, m := range page.Messages {
			if found[string(m.Payload)] != "" {
				found[string(m.Payload)] += " and "
			}
			found[string(m.Payload)] += string(state)
			d.id[string(m.Payload)] = m.ID
		}
	}
	return found
}

// read has an answer that is read twice be the same both times.
func read[T any](f func(d *desk, a *admin.Admin) (T, error)) func(*desk) error {
	return func(d *desk) error {
		got, err := f(d, d.admin)
		if err != nil {
			return err
		}
		want, err := f(d, d.onlook)
		require.NoError(d.t, err)
		require.Equal(d.t, want, got)
		return nil
	}
}

// repair mends what was damaged.
func repair(d *desk) error {
	_, err := d.admin.Repair(d.t.Context(), "t")
	return err
}

var checks = read(func(d *desk, a *admin.Admin) (int, error) {
	r, err := a.Check(d.t.Context(), "t")
	return r.Messages + len(r.Violations()), err
})

// topic is the topic by one of the two ways.
func (d *desk) topic(client redis.UniversalClient) *queue.Topic {
	return queue.NewTopic(servers.MustClient(client), redisdelay.DefaultKeyPrefix, "t")
}

// recurs gives the topic a recurring schedule.
func recurs(d *desk) {
	_, err := d.topic(d.direct).Amend(d.t.Context(), queue.Amendment{What: queue.Put, Name: "hourly", Definition: `{"spec":"@hourly"}`})
	require.NoError(d.t, err)
}

// turns adds a group with SingleActive, whose active subscription is this.
func turns(active string) func(*desk) {
	return func(d *desk) {
		require.NoError(d.t, d.topic(d.direct).Register(d.t.Context(), "turns", queue.GroupOptions{MaxDeliveries: 5, SingleActive: true}))
		require.NoError(d.t, d.direct.HSet(d.t.Context(), d.keys.Active(), "turns", active).Err())
	}
}

// isFree requires that no subscription of that group is active.
func isFree(d *desk) {
	d.t.Helper()
	require.Equal(d.t, "- 1 0 1000", d.direct.HGet(d.t.Context(), d.keys.Active(), "turns").Val())
}

func only[T any](_ T, err error) error { return err }

// retries adds a message that retries in group a, the only one then, under delay ID "again".
func retries(d *desk) {
	d.t.Helper()
	require.NoError(d.t, only(d.onlook.DeleteGroup(d.t.Context(), "t", "b", admin.DeleteOptions{})))
	publisher, err := redisdelay.NewPublisher(redisdelay.PublisherConfig{Client: d.direct}, nil)
	require.NoError(d.t, err)
	msg := message.NewMessage("again", []byte("again"))
	redisdelay.SetDelayID(msg, "again", redisdelay.DelayIDReplace)
	require.NoError(d.t, errors.Join(publisher.Publish("t", msg), publisher.Close()))
	d.states("a")
	require.NoError(d.t, only(d.onlook.Kill(d.t.Context(), "t", admin.GroupMessage{Group: "a", ID: d.id["again"]}, admin.KillOptions{})))
	require.NoError(d.t, d.onlook.Requeue(d.t.Context(), "t", admin.GroupMessage{Group: "a", ID: d.id["again"]}))
	require.Equal(d.t, "retrying", d.states("a")["again"])
}

// cancels takes that message back.
func cancels(d *desk) error { return d.admin.Cancel(d.t.Context(), "t", admin.ByDelayID("again")) }

// repeat has the ready message of group a in its list twice.
func repeat(d *desk) {
	entry := d.direct.LIndex(d.t.Context(), d.keys.Ready("a"), -1).Val()
	require.NoError(d.t, d.direct.RPush(d.t.Context(), d.keys.Ready("a"), entry).Err())
	require.Equal(d.t, "ready and ready", d.states("a")["ready"])
}

// operation is what makes the call of a script, and where group a has its messages then: nil, where
// it had them.
type operation struct {
	prepare func(d *desk)
	do      func(d *desk) error
	want    map[string]string
	holds   func(d *desk)
}

// movesAway moves what waits and is dead in all groups to another topic.
var movesAway = operation{
	prepare: func(d *desk) {
		require.NoError(d.t, d.onlook.Reschedule(d.t.Context(), "t", admin.ByDelayID("waits"), admin.In(30*time.Second)))
	},
	do: func(d *desk) error {
		_, err := d.admin.Move(d.t.Context(), "t", admin.Moving{To: "renamed", Create: true})
		return err
	},
	want: map[string]string{"ready": "ready", "dead": "dead"}, // group b has the dead one ready
	holds: func(d *desk) {
		m, err := d.onlook.Get(d.t.Context(), "renamed", admin.ByDelayID("waits"))
		require.NoError(d.t, err)
		require.Equal(d.t, admin.Waiting, m.Places[0].State)
		s, err := d.onlook.Stats(d.t.Context(), "renamed")
		require.NoError(d.t, err)
		require.Equal(d.t, 1, s.Messages)
	},
}

// operations are of the scripts that no worker calls under load.
var operations = map[string]operation{
	"watch": {do: func(d *desk) error {
		t := d.topic(d.client)
		groups, err := t.Existing(d.t.Context())
		if err != nil {
			return err
		}
		call := t.WatchCall(groups, "box|1", &queue.Look{})
		return queue.Do(d.t.Context(), t.Client(), call)
	}},
	"disown": {do: func(d *desk) error {
		_, err := d.topic(d.client).Disown(d.t.Context(), "a", "nobody")
		return err
	}},
	"sign": {do: func(d *desk) error {
		return d.topic(d.client).Group("a").Sign(d.t.Context(), "nobody", queue.Sign("box|1", time.Minute))
	}},
	"purge": {
		prepare: func(d *desk) { d.register("a", time.Millisecond) },
		do: func(d *desk) error {
			_, _, err := d.topic(d.client).Purge(d.t.Context())
			return err
		},
		want: map[string]string{"waits": "waiting", "ready": "ready"},
	},
	"remove": {
		do: func(d *desk) error {
			_, err := d.admin.DeleteGroup(d.t.Context(), "t", "a", admin.DeleteOptions{})
			return err
		},
		want: map[string]string{"waits": "waiting"},
		holds: func(d *desk) {
			require.Equal(d.t, map[string]string{"waits": "waiting", "ready": "ready", "dead": "ready"}, d.states("b"))
		},
	},
	"reschedule": {
		do: func(d *desk) error {
			return d.admin.Reschedule(d.t.Context(), "t", admin.ByDelayID("waits"), admin.In(3*time.Hour))
		},
		holds: func(d *desk) {
			m, err := d.onlook.Get(d.t.Context(), "t", admin.ByDelayID("waits"))
			require.NoError(d.t, err)
			require.WithinDuration(d.t, time.Now().Add(3*time.Hour), m.Places[0].At, time.Minute)
		},
	},
	"requeue": {
		do: func(d *desk) error {
			return d.admin.Requeue(d.t.Context(), "t", admin.GroupMessage{Group: "a", ID: d.id["dead"]})
		},
		want: map[string]string{"waits": "waiting", "ready": "ready", "dead": "retrying"}, // at once
	},
	"discard": {
		do: func(d *desk) error {
			return d.admin.DeleteDead(d.t.Context(), "t", admin.GroupMessage{Group: "a", ID: d.id["dead"]})
		},
		want: map[string]string{"waits": "waiting", "ready": "ready"},
		holds: func(d *desk) {
			require.Equal(d.t, map[string]string{"waits": "waiting", "ready": "ready", "dead": "ready"}, d.states("b"))
		},
	},
	"restore": {
		prepare: func(d *desk) {
			page, err := d.onlook.List(d.t.Context(), "t", admin.Query{State: admin.Waiting, Whole: true})
			require.NoError(d.t, err)
			d.exported = page.Messages
			require.NoError(d.t, d.onlook.Cancel(d.t.Context(), "t", admin.ByDelayID("waits")))
		},
		do: func(d *desk) error {
			_, err := d.admin.Restore(d.t.Context(), "t", func(yield func(admin.Message, error) bool) {
				for _, m := range d.exported {
					if !yield(m, nil) {
						return
					}
				}
			}, admin.Restoring{})
			return err
		},
		holds: func(d *desk) {
			m, err := d.onlook.Get(d.t.Context(), "t", admin.ByDelayID("waits"))
			require.NoError(d.t, err)
			require.Equal(d.t, d.exported[0].ID, m.ID)
			require.Equal(d.t, d.exported[0].Places[0].At, m.Places[0].At)
		},
	},
	"gather": movesAway,
	"adopt":  movesAway,
	"depart": movesAway,
	"arrive": movesAway,
	"kill": {
		do: func(d *desk) error {
			_, err := d.admin.Kill(d.t.Context(), "t", admin.GroupMessage{Group: "a", ID: d.id["ready"]}, admin.KillOptions{})
			return err
		},
		want: map[string]string{"waits": "waiting", "ready": "dead", "dead": "dead"},
		holds: func(d *desk) {
			require.Equal(d.t, map[string]string{"waits": "waiting", "ready": "ready", "dead": "ready"}, d.states("b"))
		},
	},
	"look": {do: read(func(d *desk, a *admin.Admin) (int, error) {
		r, err := a.Ready(d.t.Context(), "t")
		return len(r.Topics), err
	})},
	"fault": { // of a scheduler that fails, which no scheduler does under load
		do: func(d *desk) error {
			return queue.NewTopic(servers.MustClient(d.client), redisdelay.DefaultKeyPrefix, "t").NoteFault(d.t.Context(), errors.New("x"))
		},
		holds: func(d *desk) {
			require.Regexp(d.t, `^\d+ x$`, d.direct.HGet(d.t.Context(), d.keys.Scheduler(), "fault").Val())
		},
	},
	"pause": {
		do: func(d *desk) error {
			_, err := d.admin.Pause(d.t.Context(), "t", admin.PauseOptions{Scope: admin.InGroup("a")})
			return err
		},
		holds: func(d *desk) {
			was, err := d.onlook.Resume(d.t.Context(), "t", admin.ResumeOptions{Scope: admin.InGroup("a")})
			require.NoError(d.t, err)
			require.True(d.t, was)
		},
	},
	"assign": {
		do: func(d *desk) error {
			_, err := d.admin.SetLimit(d.t.Context(), "t", "a", admin.Limit{Rate: 1000, Burst: 50, AtOnce: 40})
			return err
		},
		holds: func(d *desk) {
			did, err := d.onlook.ResetLimit(d.t.Context(), "t", "a")
			require.NoError(d.t, err)
			require.Equal(d.t, admin.GroupLimit{Limit: admin.Limit{Rate: 1000, Burst: 50, AtOnce: 40}, Set: true}, did.Before)
		},
	},
	"resume": {
		prepare: func(d *desk) {
			_, err := d.onlook.Pause(d.t.Context(), "t", admin.PauseOptions{Scope: admin.InGroup("a")})
			require.NoError(d.t, err)
		},
		do: func(d *desk) error {
			_, err := d.admin.Resume(d.t.Context(), "t", admin.ResumeOptions{Scope: admin.InGroup("a")})
			return err
		},
		holds: func(d *desk) {
			was, err := d.onlook.Resume(d.t.Context(), "t", admin.ResumeOptions{Scope: admin.InGroup("a")})
			require.NoError(d.t, err)
			require.False(d.t, was)
		},
	},
	"erase": {
		do: func(d *desk) error {
			_, err := d.admin.DeleteTopic(d.t.Context(), "t", admin.DeleteOptions{})
			return err
		},
		want:  map[string]string{},
		holds: func(d *desk) { queuetest.CheckDrained(d.t, d.direct, redisdelay.DefaultKeyPrefix) },
	},
	"page": {do: read(func(d *desk, a *admin.Admin) (admin.Page, error) {
		return a.List(d.t.Context(), "t", admin.Query{Group: "a", State: admin.Dead})
	})},
	"stats": {do: read(func(d *desk, a *admin.Admin) (int, error) {
		s, err := a.Stats(d.t.Context(), "t")
		return s.Messages, err
	})},
	"upcoming": {do: read(func(d *desk, a *admin.Admin) ([]admin.Bucket, error) {
		return a.Upcoming(d.t.Context(), "t", admin.Load{From: time.Unix(0, 0), Width: 1000 * time.Hour, Buckets: 900})
	})},
	"passing": {do: func(d *desk) error {
		ends, cancel := context.WithCancel(d.t.Context())
		_, err := d.admin.Tail(ends, "t", func(admin.Message) bool { return true }, admin.TailOptions{Began: cancel})
		return err
	}},
	"inspect": {do: read(func(d *desk, a *admin.Admin) (admin.Message, error) {
		return a.Get(d.t.Context(), "t", admin.ByID(d.id["dead"]))
	})},
	"seek": {
		prepare: retries,
		do:      cancels,
		want:    map[string]string{"waits": "waiting", "ready": "ready", "dead": "dead"},
	},
	"recall": {
		prepare: retries,
		do: func(d *desk) error {
			return d.admin.Reschedule(d.t.Context(), "t", admin.ByDelayID("again"), admin.In(3*time.Hour))
		},
		want: map[string]string{"waits": "waiting", "ready": "ready", "dead": "dead", "again": "retrying"},
		holds: func(d *desk) {
			m, err := d.onlook.Get(d.t.Context(), "t", admin.ByID(d.id["again"]))
			require.NoError(d.t, err)
			require.WithinDuration(d.t, time.Now().Add(3*time.Hour), m.Places[0].At, time.Minute)
		},
	},
	"scan":   {do: checks},
	"halves": {do: checks},
	"ranges": {
		prepare: repeat, // so that Check looks for the other entry
		do:      checks,
		want:    map[string]string{"waits": "waiting", "ready": "ready and ready", "dead": "dead"},
		holds:   func(d *desk) { require.NoError(d.t, d.direct.RPop(d.t.Context(), d.keys.Ready("a")).Err()) },
	},
	"mend": {
		prepare: func(d *desk) { // as if its body was lost, and half of a delay ID
			require.NoError(d.t, d.direct.HDel(d.t.Context(), d.keys.Messages(), d.id["waits"]).Err())
			require.NoError(d.t, d.direct.ZAdd(d.t.Context(), d.keys.Taken(), redis.Z{Score: 3e12, Member: "nobody's"}).Err())
		},
		do:    repair,
		want:  map[string]string{"ready": "ready", "dead": "dead"},
		holds: func(d *desk) { require.Zero(d.t, d.direct.ZCard(d.t.Context(), d.keys.Taken()).Val()) },
	},
	"single": {
		prepare: repeat,
		do:      repair,
	},
	"schedules": {prepare: recurs, do: func(d *desk) error {
		_, _, records, err := d.topic(d.client).Schedules(d.t.Context(), "", []string{"hourly"})
		if err == nil {
			require.Len(d.t, records, 1)
		}
		return err
	}},
	"review": {prepare: recurs, do: read(func(d *desk, a *admin.Admin) ([]admin.TopicSchedules, error) {
		all, err := a.Schedules(d.t.Context(), "t")
		for i := range all {
			all[i].Now = time.Time{} // each look has its own
		}
		return all, err
	})},
	"amend": {
		prepare: recurs,
		do: func(d *desk) error {
			_, _, err := d.admin.PauseSchedule(d.t.Context(), "t", "hourly", admin.PauseOptions{})
			return err
		},
		holds: func(d *desk) {
			all, err := d.onlook.Schedules(d.t.Context(), "t")
			require.NoError(d.t, err)
			require.Len(d.t, all[0].Schedules, 1)
			require.NotZero(d.t, all[0].Schedules[0].Pause)
		},
	},
	"succeed": {
		prepare: turns("OWNER 1 1 1000"),
		do: func(d *desk) error {
			_, err := d.topic(d.client).Succeed(d.t.Context(), "turns")
			return err
		},
		holds: isFree,
	},
	"stand_down": {
		prepare: turns("OWNER 1 0 1000"),
		do:      func(d *desk) error { return d.topic(d.client).Group("turns").StandDown(d.t.Context(), "OWNER") },
		holds:   isFree,
	},
	"overlap": {do: func(d *desk) error {
		alone, err := d.topic(d.client).Handle("hourly", "a", time.Unix(3600, 0), time.Minute).Begin(d.t.Context(), 0, false)
		if err == nil {
			require.True(d.t, alone, "a repeat is not another occurrence")
		}
		return err
	}},
	"open_stream":    {do: toStream(0), holds: inStream},
	"promote_stream": {do: moves, holds: inStream},
	"nudge": {
		prepare: func(d *desk) {
			require.NoError(d.t, d.direct.HDel(d.t.Context(), d.keys.Scheduler(), "next").Err())
		},
		do: repair,
		holds: func(d *desk) {
			require.True(d.t, d.direct.HExists(d.t.Context(), d.keys.Scheduler(), "next").Val())
		},
	},
}

func publishToStream(client redis.UniversalClient, delay time.Duration) error {
	publisher, err := redisdelay.NewPublisher(redisdelay.PublisherConfig{
		Client: client, Stream: &redisdelay.StreamConfig{DisableScheduler: true},
	}, nil)
	if err != nil {
		return err
	}
	msg := message.NewMessage("m", nil)
	if delay > 0 {
		redisdelay.DelayFor(msg, delay)
	}
	return errors.Join(publisher.Publish("s", msg), publisher.Close())
}

// toStream publishes to the Redis Stream "s".
func toStream(delay time.Duration) func(*desk) error {
	return func(d *desk) error { return publishToStream(d.client, delay) }
}

// moves has a scheduler move a message to the stream.
func moves(d *desk) error {
	require.NoError(d.t, publishToStream(d.direct, 20*time.Millisecond))
	s, err := scheduler.New(scheduler.Config{Client: d.client}, nil)
	require.NoError(d.t, err)
	running, stop := context.WithCancel(d.t.Context())
	ended := make(chan error, 1)
	go func() { ended <- s.Run(running) }()
	faulttest.Eventually(d.t, func() bool {
		return d.lost() == d.loses && d.direct.XLen(d.t.Context(), "s").Val() > 0
	}, 10*time.Second, time.Millisecond)
	stop()
	return <-ended
}

func inStream(d *desk) {
	d.t.Helper()
	require.EqualValues(d.t, 1, d.direct.XLen(d.t.Context(), "s").Val())
}

// consistent requires that each message is in one state of each group.
func (d *desk) consistent() {
	d.t.Helper()
	found, err := queuetest.Violations(d.t.Context(), d.direct, redisdelay.DefaultKeyPrefix)
	require.NoError(d.t, err)
	require.Empty(d.t, found)
}

// operatorsRepliesSwallowed has n replies in a row get lost. What was not answered in the end is
// done again, as an operator would, and may find then that it was done.
func operatorsRepliesSwallowed(t *testing.T, script string, n int) {
	o := operations[script]
	server := redistest.Start(t)
	p := faulttest.NewProxy(t, server.Addr())
	d := newDesk(t, server, p)
	d.loses = n
	want := o.want
	if want == nil {
		want = d.states("a")
	}
	if o.prepare != nil {
		o.prepare(d)
	}
	p.Swallow(n, faulttest.Script(script))
	err := o.do(d)
	require.Equal(t, n, p.Swallowed())
	if n < clientTries {
		require.NoError(t, err)
	} else if err != nil {
		if err = o.do(d); !errors.Is(err, admin.ErrNotFound) {
			require.NoError(t, err)
		}
	}
	require.Equal(t, want, d.states("a"))
	if o.holds != nil {
		o.holds(d)
	}
	d.consistent()
	faulttest.Report(t, fmt.Sprintf("%d replies lost", n))
}
