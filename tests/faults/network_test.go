package faults

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/redisdelay/watermill-redisdelay/internal/test/faulttest"
	"github.com/redisdelay/watermill-redisdelay/internal/test/redistest"
)

func TestConnectionsKilledAllTheTime(t *testing.T) {
	t.Parallel()
	faulttest.Case(t, "CLIENT KILL of all connections every 30 ms, of Pub/Sub too: nothing is lost, doubled or stuck")
	server := redistest.Start(t)
	l := newLoad(t, server, faulttest.Place{})
	killed, operator := map[string]int64{}, server.Client(t)
	var failed []error
	kills := l.harass(30*time.Millisecond, func() {
		for _, kind := range []string{"normal", "pubsub"} {
			n, err := operator.ClientKillByFilter(t.Context(), "TYPE", kind, "SKIPME", "yes").Result()
			killed[kind] += n
			if err != nil {
				failed = append(failed, err)
			}
		}
	})
	l.progress(t, faulttest.Pick(200, 3000))
	n := kills()
	l.w.Verify(byPollRules)
	require.Empty(t, failed)
	require.Positive(t, killed["normal"])
	require.Positive(t, killed["pubsub"])
	faulttest.Report(t, fmt.Sprintf("%d times, %d connections, and %d of Pub/Sub", n, killed["normal"], killed["pubsub"]))
}

func TestConnectionsCutAllTheTime(t *testing.T) {
	t.Parallel()
	faulttest.Case(t, "connections that break in the middle of calls and replies: nothing is lost, doubled or stuck")
	server := redistest.Start(t)
	p := faulttest.NewProxy(t, server.Addr())
	l := newLoad(t, server, p.Place())
	l.progress(t, 20) // the first calls are sent twice, for want of their scripts
	began := time.Now().UnixNano()
	cuts := l.harass(40*time.Millisecond, p.Cut)
	l.progress(t, faulttest.Pick(200, 3000))
	n := cuts()
	l.w.Verify(byPollRules)
	calls := 0
	for _, e := range l.w.History() {
		if e.Kind == faulttest.Answer && e.Sent > began && (e.Tries > 1 || e.Err != "") {
			calls++
		}
	}
	require.Positive(t, calls, "no claim was cut")
	faulttest.Report(t, fmt.Sprintf("%d times, %d claims were cut", n, calls))
}

func TestServerPausedForLongerThanTheLease(t *testing.T) {
	t.Parallel()
	rounds := faulttest.Pick(2, 10)
	faulttest.Case(t, "CLIENT PAUSE for longer than the lease: what was in hand comes again, and the late acks change nothing")
	server := redistest.Start(t)
	l := newLoad(t, server, faulttest.Place{}, func(w *faulttest.Worker) { w.LeaseMS, w.WorkMS, w.PauseMS = 400, 40, 250 })
	held := 0
	for round := range rounds {
		name := fmt.Sprint("hold-", round)
		l.progress(t, 30)
		its := l.hold(t, name, 1)
		require.NoError(t, l.w.Client.Do(t.Context(), "CLIENT", "PAUSE", 900, "ALL").Err())
		l.awaitOver(t, its)
		l.awaitAgain(t, its)
		l.w.Release(name)
		l.awaitLate(t, its)
		held += len(its)
	}
	l.progress(t, 30)
	l.w.Verify(loadRules)
	faulttest.Report(t, fmt.Sprintf("%d pauses, %d leases were held, all came again, and their settlements came late and changed nothing", rounds, held))
}

func TestTwoSecondsOfLatency(t *testing.T) {
	t.Parallel()
	faulttest.Case(t, "2 s from a worker to Redis and back, with leases of 30 s: all is slow, nothing comes again or early")
	server := redistest.Start(t)
	p := faulttest.NewProxy(t, server.Addr())
	l := newLoad(t, server, p.Place(), func(w *faulttest.Worker) {
		w.LeaseMS, w.ReadTimeoutMS, w.CloseTimeoutMS = 30_000, 10_000, 20_000
		if w.Role == faulttest.Consumer {
			w.InFlight = 50
		}
	})
	l.progress(t, 20)
	p.Delay(time.Second)
	from := time.Now().UnixNano()
	l.progress(t, faulttest.Pick(30, 200))
	l.w.StopPublishers()
	to := time.Now().UnixNano()
	p.Delay(0)
	l.w.Verify(faulttest.Rules{MaxDeliveries: loadDeliveries, Return: byPoll, CloseWithin: 22 * time.Second})
	history := l.w.History()
	slow := 0
	for _, e := range history {
		if e.Sent > from && e.At < to && (e.Kind == faulttest.Settled || e.Kind == faulttest.Claimed) {
			require.GreaterOrEqual(t, time.Duration(e.At-e.Sent), 2*time.Second, "%s", e)
			slow++
		}
		require.NotEqual(t, faulttest.Lost, e.Kind, "a lease is lost: %s", e)
	}
	require.Positive(t, slow)
	require.Empty(t, uninvited(history))
	faulttest.Report(t, fmt.Sprintf("%d messages claimed or settled in calls of 2 s or more", slow))
}

func TestHalfOpenConnections(t *testing.T) {
	t.Parallel()
	rounds := faulttest.Pick(1, 5)
	faulttest.Case(t, "connections that stay open and bring nothing, for longer than the lease: workers notice by their timeouts, and go on when the network does")
	server := redistest.Start(t)
	p := faulttest.NewProxy(t, server.Addr())
	l := newLoad(t, server, p.Place(), outlastable)
	l.outlasted(t, rounds, p.Stall, p.Resume)
}

func TestServerFrozenForLongerThanTheLease(t *testing.T) {
	t.Parallel()
	faulttest.Case(t, "Redis frozen (SIGSTOP) for longer than the lease: workers notice by their timeouts, and go on when it does")
	server := redistest.Start(t)
	l := newLoad(t, server, faulttest.Place{}, outlastable)
	l.outlasted(t, faulttest.Pick(1, 5), server.Pause, server.Resume)
}

// outlastable is for outlasted: its calls fail before its leases have run out.
func outlastable(w *faulttest.Worker) {
	w.LeaseMS, w.ReadTimeoutMS, w.WorkMS, w.PauseMS = 500, 300, 700, 600
}

// outlasted has something last for longer than leases and calls, round by round. What handlers hold
// all the time comes again.
func (l *load) outlasted(t *testing.T, rounds int, begin, end func()) {
	t.Helper()
	held := 0
	for round := range rounds {
		name := fmt.Sprint("hold-", round)
		l.progress(t, 30)
		its := l.hold(t, name, 1)
		begin()
		l.awaitOver(t, its)
		l.w.AwaitEvents(faulttest.Unknown, l.w.Count(faulttest.Unknown)+1) // after a publisher's fourth timeout
		end()
		l.awaitAgain(t, its)
		l.w.Release(name)
		held += len(its)
	}
	l.progress(t, 30)
	l.w.Verify(byPollRules)
	faulttest.Report(t, fmt.Sprintf("%d times, %d leases were held, all came again", rounds, held))
}

func TestPoolOfOneConnection(t *testing.T) {
	t.Parallel()
	faulttest.Case(t, "clients with a pool of one connection: publishers with many callers, and subscribers of many topics, do not block one another for good")
	w := faulttest.NewWorld(t, faulttest.At(redistest.Start(t).Addr()), func(w *faulttest.World) {
		w.Topics = nil
		for i := range 10 {
			w.Topics = append(w.Topics, fmt.Sprint("t", i))
		}
	})
	w.Start(faulttest.Worker{Role: faulttest.Consumer, Name: "consumer", InFlight: 10, PoolSize: 1, MaxDeliveries: loadDeliveries, BackoffMS: 20})
	w.Await(w.Start(faulttest.Worker{
		Role: faulttest.Publisher, Name: "publisher", Messages: faulttest.Pick(300, 5000), Callers: 20, PoolSize: 1, Do: mixed, DelaysMS: []int{0, 30},
	})...)
	w.Verify(loadRules)
}
