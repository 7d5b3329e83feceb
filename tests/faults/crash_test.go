package faults

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/redisdelay/watermill-redisdelay/admin"
	"github.com/redisdelay/watermill-redisdelay/internal/queue"
	"github.com/redisdelay/watermill-redisdelay/internal/test/faulttest"
	"github.com/redisdelay/watermill-redisdelay/internal/test/redistest"
)

func TestServerKilledWithFsyncAlwaysLosesNothing(t *testing.T) {
	t.Parallel()
	rounds := faulttest.Pick(5, 50)
	faulttest.Case(t, "kill -9 of Redis with appendfsync always: what was confirmed is there afterwards, and is not undone")
	server := redistest.Start(t, appendOnly("always")...)
	l := newLoad(t, server, faulttest.Place{})
	for round := range rounds {
		l.progress(t, 40)
		server.Kill()
		if round%5 == 2 { // for longer than clients try
			l.w.AwaitEvents(faulttest.Unknown, l.w.Count(faulttest.Unknown)+1)
		}
		server.Restart()
	}
	l.progress(t, 40)
	figures := l.w.Verify(loadRules)
	require.Zero(t, figures.Lost)
	faulttest.Report(t, fmt.Sprintf("%d rounds, after %d of them the file was cut off", rounds, server.Cuts()))
}

func TestServerKilledWithFsyncEverySecondLosesUnwrittenData(t *testing.T) {
	t.Parallel()
	rounds := faulttest.Pick(2, 20)
	faulttest.Case(t, "kill -9 of Redis with appendfsync everysec: the process dies, the machine does not, so all is there that it has handed to the kernel")
	server := redistest.Start(t, appendOnly("everysec")...)
	l := newLoad(t, server, faulttest.Place{})
	rules := loadRules
	rules.LosesData = true
	for range rounds {
		l.progress(t, 40)
		safe := written(t, l.w)
		server.Kill()
		rules.LosesIn = append(rules.LosesIn, faulttest.Span{Safe: safe, Killed: time.Now().UnixNano()})
		server.Restart()
	}
	l.progress(t, 40)
	l.w.Verify(rules)
	faulttest.Report(t, fmt.Sprintf("%d rounds", rounds))
}

// written waits until the server has handed its file to the kernel, which it puts off for up to two
// seconds while the disk is behind. It returns from when on that may not be so.
func written(t *testing.T, w *faulttest.World) (since int64) {
	t.Helper()
	faulttest.Eventually(t, func() bool {
		since = time.Now().UnixNano()
		info, err := w.Client.Info(t.Context(), "persistence").Result()
		return err == nil && strings.Contains(info, "aof_buffer_length:0\r\n")
	}, time.Minute, time.Millisecond)
	return since
}

// losesNothing has a server under load end and start again, round by round, and nothing may be lost
// by that.
func losesNothing(t *testing.T, server *redistest.Instance, rounds int, end func()) {
	t.Helper()
	l := newLoad(t, server, faulttest.Place{})
	for range rounds {
		l.progress(t, 40)
		end()
		server.Restart()
	}
	l.progress(t, 40)
	figures := l.w.Verify(loadRules)
	require.Zero(t, figures.Lost)
	faulttest.Report(t, fmt.Sprintf("%d rounds", rounds))
}

func TestServerRestartedProperlyLosesNothing(t *testing.T) {
	t.Parallel()
	rounds := faulttest.Pick(2, 10)
	faulttest.Case(t, "a restart of Redis that saves its data first (SHUTDOWN SAVE): nothing is lost or undone")
	server := redistest.Start(t, "--save", "3600 1000000")
	losesNothing(t, server, rounds, server.Shutdown)
}

func TestWorkersKilledInTheirHandlersLoseNothing(t *testing.T) {
	t.Parallel()
	rounds := faulttest.Pick(4, 40)
	faulttest.Case(t, "kill -9 of a consumer in a handler, and of a publisher in a call: what it had comes again, a second after its lease at the latest when others are idle")
	server := redistest.Start(t)
	networks := map[string]*faulttest.Proxy{}
	l := newLoad(t, server, faulttest.Place{}, func(w *faulttest.Worker) {
		if w.Role == faulttest.Publisher {
			networks[w.Name] = faulttest.NewProxy(t, server.Addr())
			w.Place = networks[w.Name].Place()
		}
		w.WorkMS, w.PauseMS = 30, 250
	})
	publishers := []string{l.publishers[0].Name, l.publishers[1].Name}
	handled, called := 0, 0
	for round := range rounds {
		name := fmt.Sprint("hold-", round)
		l.progress(t, 30)
		consumer, publisher := l.holderIn(t, l.w.Groups[round%2], l.hold(t, name, 1)), &l.publishers[round%2]
		(*consumer).Kill()
		l.w.Release(name)
		network := networks[publishers[round%2]]
		network.SwallowSilently(1, faulttest.Script("publish")) // it waits for the reply
		faulttest.Eventually(t, func() bool { return network.Swallowed() == 1 }, time.Minute, time.Millisecond)
		(*publisher).Kill()
		history := l.w.History()
		handled += len(handlersOf(history, (*consumer).Name))
		require.Positive(t, callsOf(history, (*publisher).Name), "the publisher was in no call")
		called += callsOf(history, (*publisher).Name)
		for _, victim := range []**faulttest.Running{consumer, publisher} {
			successor := (*victim).Worker
			successor.Name = fmt.Sprintf("%s.%d", successor.Name, round)
			*victim = l.w.Start(successor)[0]
		}
	}
	l.progress(t, 30)
	l.w.Verify(byPollRules)
	require.GreaterOrEqual(t, handled, rounds, "no consumer was in a handler")
	faulttest.Report(t, fmt.Sprintf("%d rounds, %d messages in handlers, %d in calls", rounds, handled, called))
}

func TestMessageOfAKilledWorkerComesBack(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		scheduler bool
		within    time.Duration
	}{
		"its scheduler lives":     {true, 200 * time.Millisecond},
		"its scheduler dies, too": {false, 1300 * time.Millisecond},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			faulttest.Case(t, "what a killed consumer had in hand comes to an idle one as its lease ends; a second later if the topic's scheduler was killed with it")
			w := faulttest.NewWorld(t, faulttest.At(redistest.Start(t).Addr()), func(w *faulttest.World) { w.Groups = []string{"g", "h"} })
			handlers := 1
			if c.scheduler { // who subscribes first does the due-time work of the topic, for all groups
				w.Start(faulttest.Worker{Role: faulttest.Consumer, Name: "scheduler", Group: "h"})
				w.AwaitEvents(faulttest.Answer, 1)
				handlers = 2
			}
			victim := w.Start(faulttest.Worker{Role: faulttest.Consumer, Name: "victim", Stuck: true, LeaseMS: 600})[0]
			publishOne(t, w, handlers)
			w.Start(faulttest.Worker{Role: faulttest.Consumer, Name: "idle"})
			victim.Kill()
			if !c.scheduler {
				w.Start(faulttest.Worker{Role: faulttest.Consumer, Name: "other", Group: "h"})
			}
			figures := w.Verify(faulttest.Rules{Return: c.within})
			require.Equal(t, 1, figures.Redeliveries)
		})
	}
}

// publishOne publishes a message, and returns when as many handlers have begun with it.
func publishOne(t *testing.T, w *faulttest.World, handlers int) {
	t.Helper()
	w.Await(w.Start(faulttest.Worker{
		Role: faulttest.Publisher, Name: "publisher", Messages: 1,
	})...)
	w.Handled(handlers)
}

func TestFrozenWorkerChangesNothingAfterItsLease(t *testing.T) {
	t.Parallel()
	rounds := faulttest.Pick(2, 20)
	faulttest.Case(t, "SIGSTOP of a consumer for longer than its lease, then SIGCONT: others have its messages, its own acks and nacks change nothing")
	server := redistest.Start(t)
	l := newLoad(t, server, faulttest.Place{}, func(w *faulttest.Worker) { w.LeaseMS, w.WorkMS, w.PauseMS = 400, 40, 250 })
	held := 0
	for round := range rounds {
		name := fmt.Sprint("hold-", round)
		l.progress(t, 30)
		its := l.hold(t, name, 1)
		victim := *l.holderIn(t, l.w.Groups[round%2], its)
		maps.DeleteFunc(its, func(_ lease, e faulttest.Event) bool { return e.By != victim.Name })
		thaw := victim.Freeze()
		leases := l.leases(t)
		l.w.Release(name)
		l.awaitEndOf(t, leases) // so those of the frozen one have run out
		thaw()
		l.awaitLate(t, its)
		held += len(its)
	}
	l.progress(t, 60)
	l.w.Verify(byPollRules)
	faulttest.Report(t, fmt.Sprintf("%d rounds, %d leases were held, their settlements came late and changed nothing", rounds, held))
}

// An operator ends the leases of a frozen consumer, long before they run out.
func TestReleasedWorkerThatWakesUpChangesNothing(t *testing.T) {
	t.Parallel()
	rounds := faulttest.Pick(2, 20)
	faulttest.Case(t, "SIGSTOP of a consumer, its leases released, then SIGCONT: others have its messages at once, its own acks and nacks change nothing, each release is one expiry")
	server := redistest.Start(t)
	l := newLoad(t, server, faulttest.Place{}, func(w *faulttest.Worker) { w.LeaseMS, w.WorkMS, w.PauseMS = 60_000, 40, 250 })
	operator, err := admin.New(admin.Config{Client: server.Client(t), KeyPrefix: l.w.Prefix})
	require.NoError(t, err)
	expired := func() (n int) {
		for _, g := range topicStats(t, operator, l.w.Topics[0]).Groups {
			n += g.Counters.Expired
		}
		return n
	}
	var tokens []string
	subscriptions := map[string]bool{} // that were released
	released, slowest := 0, time.Duration(0)
	for round := range rounds {
		name := fmt.Sprint("hold-", round)
		l.progress(t, 30)
		its := l.hold(t, name, 1)
		victim := *l.holderIn(t, "g", its) // which has another consumer beside it
		maps.DeleteFunc(its, func(_ lease, e faulttest.Event) bool { return e.By != victim.Name })
		before := expired()
		thaw := victim.Freeze()
		for _, leases := range l.leases(t) {
			tokens = slices.AppendSeq(tokens, maps.Values(leases))
		}
		began, ended := time.Now(), 0
		for _, worker := range workersOf(t, operator, l.w.Topics[0]) {
			if worker.PID == victim.PID() {
				subscriptions[worker.Subscription] = true
				n, err := operator.ReleaseWorker(t.Context(), worker)
				require.NoError(t, err)
				ended += n
			}
		}
		require.Positive(t, ended)
		l.awaitAgain(t, its)
		slowest = max(slowest, time.Since(began))
		require.Equal(t, before+ended, expired(), "each release is an expiry")
		l.w.Release(name)
		thaw()
		l.awaitLate(t, its)
		released += ended
	}
	l.progress(t, 60)
	violations, _ := l.w.Judge(byPollRules)
	for _, v := range violations { // the checker knows of no release
		require.True(t, v.Property == faulttest.OneLease && slices.ContainsFunc(tokens, func(token string) bool {
			return subscriptions[queue.SubscriptionOf(token)] && strings.HasSuffix(v.Text, " before lease "+token+" was over")
		}), "%v", v)
	}
	require.Less(t, slowest, 30*time.Second)
	faulttest.Report(t, fmt.Sprintf("%d rounds, %d leases were released and again in hand after %v at most", rounds, released, slowest.Round(time.Millisecond)))
}

func topicStats(t *testing.T, operator *admin.Admin, topic string) admin.Stats {
	t.Helper()
	stats, err := operator.Stats(t.Context(), topic)
	require.NoError(t, err)
	return stats
}

func workersOf(t *testing.T, operator *admin.Admin, topic string) []admin.Worker {
	t.Helper()
	workers, err := operator.Workers(t.Context(), topic)
	require.NoError(t, err)
	return workers
}

// holderIn is the consumer that has the lease of a group.
func (l *load) holderIn(t *testing.T, group string, held map[lease]faulttest.Event) **faulttest.Running {
	t.Helper()
	for _, e := range held {
		if i := slices.IndexFunc(l.consumers, func(r *faulttest.Running) bool { return r.Name == e.By }); e.Group == group && i >= 0 {
			return &l.consumers[i]
		}
	}
	require.FailNow(t, "nobody has the lease", "group %q: %v", group, held)
	return nil
}

// leases are those of all groups at this moment, by where they are, and the message.
func (l *load) leases(t *testing.T) map[string]map[string]string {
	t.Helper()
	found := map[string]map[string]string{}
	for _, topic := range l.w.Topics {
		for _, group := range l.w.Groups {
			key := queue.NewKeys(l.w.Prefix, topic).Leases(group)
			leases, err := l.w.Client.HGetAll(t.Context(), key).Result()
			require.NoError(t, err)
			found[key] = leases
		}
	}
	return found
}

// awaitEndOf waits until none of these leases is held any more.
func (l *load) awaitEndOf(t *testing.T, leases map[string]map[string]string) {
	t.Helper()
	faulttest.Eventually(t, func() bool {
		for key, now := range l.leases(t) {
			for id, lease := range now {
				if leases[key][id] == lease {
					return false
				}
			}
		}
		return true
	}, time.Minute, 5*time.Millisecond)
}

func TestAckThatWasHeldUpForLongerThanItsLeaseChangesNothing(t *testing.T) {
	t.Parallel()
	faulttest.Case(t, "an ack that arrives after another has the message leaves it to that one")
	w, _ := lateAck(t, faulttest.NotBroken)
	figures := w.Verify(faulttest.Rules{Return: byPoll})
	require.Equal(t, 2, figures.Deliveries)
}
