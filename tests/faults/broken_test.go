package faults

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/redisdelay/watermill-redisdelay/admin"
	"github.com/redisdelay/watermill-redisdelay/internal/test/faulttest"
	"github.com/redisdelay/watermill-redisdelay/internal/test/redistest"
)

// caught requires that the checker has found violations of properties in a world whose workers are
// broken.
func caught(t *testing.T, w *faulttest.World, want ...faulttest.Property) {
	t.Helper()
	caughtBy(t, w, faulttest.Rules{}, want...)
}

func caughtBy(t *testing.T, w *faulttest.World, rules faulttest.Rules, want ...faulttest.Property) {
	t.Helper()
	violations, _ := w.Judge(rules)
	for _, p := range want {
		require.True(t, faulttest.Has(violations, p), "property %v is not found to be violated, only %v", p, violations)
		for _, v := range violations {
			if v.Property == p {
				what, _, _ := strings.Cut(v.String(), `: {"`)
				what, _, _ = strings.Cut(what, "\n")
				faulttest.Report(t, what)
				break
			}
		}
	}
}

func TestCheckerCatchesATornMove(t *testing.T) {
	t.Parallel()
	faulttest.Case(t, "a move in two steps is caught: the message is in no state between them")
	w := faulttest.NewWorld(t, faulttest.At(redistest.Start(t).Addr()))
	w.Start(faulttest.Worker{Role: faulttest.Consumer, Name: "consumer", Broken: faulttest.TornMove, InFlight: 10})
	w.Await(w.Start(faulttest.Worker{Role: faulttest.Publisher, Name: "publisher", Messages: 100, PauseMS: 5, DelaysMS: []int{10}})...)
	caught(t, w, faulttest.OneState)
}

func TestCheckerCatchesATornMoveThatACrashEnds(t *testing.T) {
	t.Parallel()
	faulttest.Case(t, "a move in two steps that a crash ends is caught, also if nobody finds in Redis what it leaves: the history knows what was published")
	server := redistest.Start(t)
	w := faulttest.NewWorld(t, faulttest.At(server.Addr()))
	broken := w.Start(faulttest.Worker{Role: faulttest.Consumer, Name: "broken", Broken: faulttest.TornMove, InFlight: 10})[0]
	publisher := w.Start(faulttest.Worker{Role: faulttest.Publisher, Name: "publisher", Callers: 4, DelaysMS: []int{0, 3, 6}})[0]
	moving := "redisdelay:{t}:ready:g:moving"
	faulttest.Eventually(t, func() bool {
		if w.Client.Exists(t.Context(), moving).Val() == 0 {
			return false
		}
		thaw := broken.Freeze()
		if w.Client.Exists(t.Context(), moving).Val() == 0 { // it was faster
			thaw()
			return false
		}
		broken.Kill()
		return true
	}, time.Minute, time.Microsecond)
	publisher.Stop()
	// Only the history still knows the torn state.
	k := w.Client
	for _, entry := range k.LRange(t.Context(), moving, 0, -1).Val() {
		require.NoError(t, k.HDel(t.Context(), "redisdelay:{t}:messages", entry[:26]).Err())
	}
	require.NoError(t, k.Del(t.Context(), moving).Err())
	w.Start(faulttest.Worker{Role: faulttest.Consumer, Name: "successor", InFlight: 10})
	caught(t, w, faulttest.Settlement)
}

func TestCheckerCatchesAMessageThatIsNotThereToBeCancelled(t *testing.T) {
	t.Parallel()
	faulttest.Case(t, "a message that is gone before its publisher cancels it is missed, and not taken for cancelled")
	server := redistest.Start(t)
	w := faulttest.NewWorld(t, faulttest.At(server.Addr()))
	p := faulttest.NewProxy(t, server.Addr())
	p.Delay(200 * time.Millisecond)
	publisher := w.Start(faulttest.Worker{Role: faulttest.Publisher, Name: "publisher", Place: p.Place(), Messages: 1, CancelEvery: 1})
	thief, err := admin.New(admin.Config{Client: w.Client})
	require.NoError(t, err)
	faulttest.Eventually(t, func() bool { return thief.Cancel(t.Context(), "t", admin.ByDelayID("publisher-0")) == nil }, time.Minute, time.Millisecond)
	w.Await(publisher...)
	caught(t, w, faulttest.Settlement)
}

func TestCheckerCatchesAnUnfencedAck(t *testing.T) {
	t.Parallel()
	faulttest.Case(t, "an ack that does not compare the lease is caught: one that was held up takes the message from its new holder")
	w, _ := lateAck(t, faulttest.UnfencedAck)
	caught(t, w, faulttest.StaleSettle)
}

func TestCheckerCatchesAnAckThatTakesAMessageAndDeniesIt(t *testing.T) {
	t.Parallel()
	faulttest.Case(t, "a late ack that takes the message from its new holder, and answers that it took nothing, is caught: the message is gone, and its last holder's ack was not taken")
	w, _ := lateAck(t, faulttest.QuietAck)
	caught(t, w, faulttest.Settlement)
}

func TestCheckerCatchesLateRetriesWhileConnectionsBreak(t *testing.T) {
	t.Parallel()
	faulttest.Case(t, "retries that wait for six seconds too long are caught while connections are killed and the server restarts")
	server := redistest.Start(t, appendOnly("always")...)
	l := newLoad(t, server, faulttest.Place{}, func(w *faulttest.Worker) {
		if w.Role == faulttest.Consumer {
			w.Broken = faulttest.LateRetry
		}
	})
	kills := l.harass(30*time.Millisecond, func() { l.w.Client.ClientKillByFilter(t.Context(), "TYPE", "normal", "SKIPME", "yes") })
	l.progress(t, 30)
	server.Kill()
	server.Restart()
	l.progress(t, 30)
	kills()
	caughtBy(t, l.w, loadRules, faulttest.ReturnTime)
}

func TestCheckerCatchesADeathThatIsTooEarly(t *testing.T) {
	t.Parallel()
	faulttest.Case(t, "a message that is dead one delivery too early is caught")
	w := faulttest.NewWorld(t, faulttest.At(redistest.Start(t).Addr()))
	w.Start(faulttest.Worker{Role: faulttest.Consumer, Name: "consumer", Broken: faulttest.EarlyDeath, MaxDeliveries: 4})
	w.Await(w.Start(faulttest.Worker{Role: faulttest.Publisher, Name: "publisher", Messages: 3, Do: []string{faulttest.Nack(9, 0)}})...)
	caughtBy(t, w, faulttest.Rules{MaxDeliveries: 4}, faulttest.Limit)
}

func TestCheckerCatchesTwoHandlersOfOneLease(t *testing.T) {
	t.Parallel()
	faulttest.Case(t, "a message that is handed to two handlers under one lease is caught")
	w := faulttest.NewWorld(t, faulttest.At(redistest.Start(t).Addr()))
	w.Start(faulttest.Worker{Role: faulttest.Consumer, Name: "consumer", Broken: faulttest.HandlesTwice})
	w.Await(w.Start(faulttest.Worker{Role: faulttest.Publisher, Name: "publisher", Messages: 3})...)
	caught(t, w, faulttest.OneLease)
}

func TestCheckerCatchesUncleanCloses(t *testing.T) {
	t.Parallel()
	for broken, says := range map[faulttest.Broken]string{
		faulttest.ClosesClient: "a Close that closes the caller's client is caught", faulttest.LeavesGoroutine: "a Close that leaves a goroutine behind is caught",
	} {
		t.Run(string(broken), func(t *testing.T) {
			t.Parallel()
			faulttest.Case(t, says)
			w := faulttest.NewWorld(t, faulttest.At(redistest.Start(t).Addr()))
			w.Start(faulttest.Worker{Role: faulttest.Consumer, Name: "consumer", Broken: broken})
			w.Await(w.Start(faulttest.Worker{Role: faulttest.Publisher, Name: "publisher", Messages: 3})...)
			caught(t, w, faulttest.Closing)
		})
	}
}

func TestCheckerCatchesDueTimesInWholeSeconds(t *testing.T) {
	t.Parallel()
	faulttest.Case(t, "due times that are rounded to seconds are caught: messages come early")
	w := faulttest.NewWorld(t, faulttest.At(redistest.Start(t).Addr()))
	w.Start(faulttest.Worker{Role: faulttest.Consumer, Name: "consumer", InFlight: 10})
	w.Await(w.Start(faulttest.Worker{
		Role: faulttest.Publisher, Name: "publisher", Broken: faulttest.WholeSeconds, Messages: 20, PauseMS: 30, DelaysMS: []int{1500},
	})...)
	caught(t, w, faulttest.NotEarly)
}

func TestCheckerCatchesTheClockOfAClient(t *testing.T) {
	t.Parallel()
	faulttest.Case(t, "a worker that takes its own clock for the server's is caught: its messages come early")
	w := faulttest.NewWorld(t, faulttest.At(redistest.Start(t).Addr()))
	w.Start(faulttest.Worker{Role: faulttest.Consumer, Name: "consumer", Broken: faulttest.ClientClock, InFlight: 10})
	w.Await(w.Start(faulttest.Worker{Role: faulttest.Publisher, Name: "publisher", Messages: 20, DelaysMS: []int{100, 1500}})...)
	caught(t, w, faulttest.NotEarly)
}

// lateAck has the ack of a worker be held up in the network until its lease is over and another
// works on the message.
func lateAck(t *testing.T, broken faulttest.Broken) (w *faulttest.World, late *faulttest.Running) {
	t.Helper()
	server := redistest.Start(t)
	p := faulttest.NewProxy(t, server.Addr())
	w = faulttest.NewWorld(t, faulttest.At(server.Addr()))
	late = w.Start(faulttest.Worker{Role: faulttest.Consumer, Name: "late", Place: p.Place(), Broken: broken})[0]
	w.Await(w.Start(faulttest.Worker{
		Role: faulttest.Publisher, Name: "publisher", Messages: 1, Do: []string{faulttest.Work(time.Second / 2)},
	})...)
	w.AwaitEvents(faulttest.Start, 1)
	p.Stall()
	w.Start(faulttest.Worker{Role: faulttest.Consumer, Name: "holder"})
	w.AwaitEvents(faulttest.Start, 2)
	p.Resume()
	return w, late
}
