package faulttest

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/redisdelay/watermill-redisdelay/internal/test/redistest"
)

// awaitLooks waits for so many more samples.
func awaitLooks(t *testing.T, w *World, n int) {
	t.Helper()
	looks := func() int {
		w.sampler.mu.Lock()
		defer w.sampler.mu.Unlock()
		return w.sampler.looks
	}
	first := looks()
	require.Eventually(t, func() bool { return looks() >= first+n }, 20*time.Second, time.Millisecond)
}

func TestOutagesAreInTheHistory(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	p := NewProxy(t, server.Addr())
	w := NewWorld(t, At(server.Addr()))
	consumer := w.Start(Worker{Role: Consumer, Name: "consumer", Place: p.Place()})[0]
	awaitLooks(t, w, 1) // a paused server could hold up the first one until the end
	before := w.Count(Outage)
	server.Pause()
	require.Error(t, w.Client.Ping(t.Context()).Err()) // its timeout is long enough to be an outage
	server.Resume()
	w.AwaitEvents(Outage, before+1)
	p.Stall()
	p.Resume()
	w.During("a test", func() {})
	consumer.Freeze()()
	w.Verify(Rules{})
	why := map[string]bool{}
	var working []Kind
	for _, e := range w.History() {
		switch e.Kind {
		case Outage:
			require.LessOrEqual(t, e.Sent, e.At)
			why[e.Err] = true
		case Up, Down:
			require.Equal(t, "consumer", e.By)
			require.Equal(t, "g", e.Group)
			working = append(working, e.Kind)
		}
	}
	require.Equal(t, map[string]bool{"the server does not answer": true, "nothing arrives": true, "a test": true}, why)
	require.Equal(t, []Kind{Up, Down, Up, Down, Down}, working)
}

func TestFailedSamplesAreFound(t *testing.T) {
	t.Parallel()
	second := int64(time.Second)
	out := Event{Kind: Outage, Sent: 5 * second, At: 15 * second}
	s := &sampler{fails: Event{Sent: second, Err: "why"}}
	s.sees(40 * second)
	require.Len(t, s.blindness(nil), 1)
	require.Empty(t, s.blindness([]Event{out}))
}

func TestLastSampleCounts(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	w := NewWorld(t, At(server.Addr()))
	awaitLooks(t, w, 1)
	w.sampler.stop()
	require.NoError(t, w.Client.RPush(t.Context(), "redisdelay:{t}:ready:g", "nobody").Err())
	require.NotEmpty(t, w.sampler.finish(t.Context()))
	w.sampler.looks = 0
	require.Contains(t, w.sampler.finish(t.Context()), "nobody has looked while the workers were at work")
}

func TestSamplesFindMissingMessages(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	w := NewWorld(t, At(server.Addr()))
	w.Start(Worker{Role: Consumer, Name: "consumer"})
	w.Await(w.Start(Worker{Role: Publisher, Name: "publisher", Messages: 1, Do: []string{Hold("seen")}})...)
	w.AwaitEvents(Claimed, 1)
	awaitLooks(t, w, 2) // the second began after the claim
	w.Release("seen")
	w.AwaitEvents(Gone, 1)
	var claimed, gone Event
	for _, e := range w.History() {
		switch e.Kind {
		case Claimed:
			claimed = e
		case Gone:
			gone = e
		}
	}
	require.Equal(t, "in_hand", gone.Outcome)
	require.Equal(t, claimed.Token, gone.Token)
	require.Equal(t, claimed.ID, gone.ID)
	require.Less(t, claimed.At, gone.Sent)
	require.Less(t, gone.Sent, gone.At)
	w.Verify(Rules{})
}
