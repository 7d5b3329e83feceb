package faults

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/redisdelay/watermill-redisdelay/internal/faulttest"
	"github.com/redisdelay/watermill-redisdelay/internal/redistest"
)

// caught requires that the checker has found violations of properties in a world whose workers are broken.
func caught(t *testing.T, w *faulttest.World, want ...faulttest.Property) {
	t.Helper()
	violations, _ := w.Judge(faulttest.Rules{})
	for _, p := range want {
		require.True(t, faulttest.Has(violations, p), "property %v is not found to be violated, only %v", p, violations)
		for _, v := range violations {
			if v.Property == p {
				what, _, _ := strings.Cut(v.String(), `: {"`)
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
	faulttest.Case(t, "a move in two steps is caught: a crash between them loses messages")
	server := redistest.Start(t)
	w := faulttest.NewWorld(t, faulttest.At(server.Addr()))
	broken := w.Start(faulttest.Worker{Role: faulttest.Consumer, Name: "broken", Broken: faulttest.TornMove, InFlight: 10})[0]
	publisher := w.Start(faulttest.Worker{Role: faulttest.Publisher, Name: "publisher", Callers: 4, DelaysMS: []int{0, 3, 6}})[0]
	moving := "redisdelay:{t}:ready:g:moving"
	require.Eventually(t, func() bool {
		if w.Client.Exists(t.Context(), moving).Val() == 0 {
			return false
		}
		broken.Kill()
		return w.Client.Exists(t.Context(), moving).Val() == 1
	}, 20*time.Second, time.Microsecond)
	publisher.Stop()
	// What was torn is forgotten by all but the history.
	k := w.Client
	for _, entry := range k.LRange(t.Context(), moving, 0, -1).Val() {
		require.NoError(t, k.HDel(t.Context(), "redisdelay:{t}:messages", entry[:26]).Err())
	}
	require.NoError(t, k.Del(t.Context(), moving).Err())
	w.Start(faulttest.Worker{Role: faulttest.Consumer, Name: "successor", InFlight: 10})
	caught(t, w, faulttest.Settlement)
}

func TestCheckerCatchesAnUnfencedAck(t *testing.T) {
	t.Parallel()
	faulttest.Case(t, "an ack that does not compare the lease is caught: one that was held up takes the message from its new holder")
	w, _ := lateAck(t, faulttest.UnfencedAck)
	caught(t, w, faulttest.StaleSettle)
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

// lateAck has the ack of a worker be held up in the network until its lease is over and another works on the
// message.
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
