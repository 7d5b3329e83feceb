package faults

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/redisdelay/watermill-redisdelay/internal/test/faulttest"
	"github.com/redisdelay/watermill-redisdelay/internal/test/redistest"
)

func appendOnly(policy string) []string {
	return []string{"--appendonly", "yes", "--appendfsync", policy}
}

func TestServerKilledWithFsyncLeftToTheSystemLosesNothing(t *testing.T) {
	t.Parallel()
	rounds := faulttest.Pick(2, 20)
	faulttest.Case(t, "kill -9 of Redis with appendfsync no: it hands all to the kernel before it answers, and the machine lives")
	server := redistest.Start(t, appendOnly("no")...)
	losesNothing(t, server, rounds, server.Kill)
}

func TestPowerLossWithFsyncAlwaysLosesNothing(t *testing.T) {
	t.Parallel()
	rounds := faulttest.Pick(3, 30)
	faulttest.Case(t, "power lost with appendfsync always: what was confirmed is on the disk, and is not undone")
	server := redistest.StartWithDisk(t, appendOnly("always")...)
	losesNothing(t, server, rounds, func() { server.PowerLoss() })
}

// behind is how late a busy machine may come to an fsync that Redis has decided upon. Meanwhile
// Redis answers, and puts off to write.
const behind = time.Second / 2

func TestPowerLossWithFsyncEverySecondLosesTheLast(t *testing.T) {
	t.Parallel()
	rounds := faulttest.Pick(3, 20)
	faulttest.Case(t, "power lost with appendfsync everysec: what came since the last fsync is lost or undone, and no more; all goes on by itself")
	server := redistest.StartWithDisk(t, appendOnly("everysec")...)
	l := newLoad(t, server, faulttest.Place{})
	var lost spans
	for range rounds {
		l.progress(t, 300)
		safe := server.PowerLoss()
		lost.add(safe.Add(-behind), safe)
		server.Restart()
	}
	l.progress(t, 40)
	lost.judge(t, l, rounds)
}

func TestServerKilledWithSnapshotsAloneLosesLaterData(t *testing.T) {
	for name, end := range map[string]func(*redistest.Instance){
		"killed":     (*redistest.Instance).Kill,
		"power lost": func(server *redistest.Instance) { server.PowerLoss() },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			rounds := faulttest.Pick(2, 10)
			faulttest.Case(t, "kill -9, or power lost, with snapshots alone: what came since the last is lost or undone, and no more; all goes on by itself")
			server := redistest.StartWithDisk(t, "--save", "3600 1000000")
			l := newLoad(t, server, faulttest.Place{})
			var lost spans
			for range rounds {
				l.progress(t, 40)
				safe := time.Now()
				require.NoError(t, server.Client(t).Save(t.Context()).Err())
				l.progress(t, 40)
				end(server)
				lost.add(safe, safe)
				server.Restart()
			}
			l.progress(t, 40)
			lost.judge(t, l, rounds)
			require.Zero(t, l.w.Logs(saysThatDataWasLost), "the groups were in the snapshots: nobody can know")
		})
	}
}

func TestSnapshotThatIsOlderThanTheGroups(t *testing.T) {
	t.Parallel()
	faulttest.Case(t, "kill -9 with a snapshot from before there were consumer groups: the log says that data was lost, and all goes on by itself")
	server := redistest.Start(t, "--save", "3600 1000000")
	require.NoError(t, server.Client(t).Save(t.Context()).Err())
	l := newLoad(t, server, faulttest.Place{})
	l.progress(t, 40)
	server.Kill()
	server.Restart()
	l.progress(t, 40)
	rules := loadRules
	rules.LosesData = true
	l.w.Verify(rules)
	require.Positive(t, l.w.Logs(saysThatDataWasLost))
}

// spans are the times of which a server has lost what it confirmed.
type spans struct {
	all  []faulttest.Span
	most time.Duration // since the last fsync or snapshot
}

// add is for a server that has just ended, and kept all that was confirmed until safe, and all that
// it had written until kept.
func (s *spans) add(safe, kept time.Time) {
	now := time.Now()
	s.all = append(s.all, faulttest.Span{Safe: safe.UnixNano(), Killed: now.UnixNano()})
	s.most = max(s.most, now.Sub(kept))
}

// judge ends a load, and verifies that nothing was lost or undone but in the spans, and something
// was.
func (s *spans) judge(t *testing.T, l *load, rounds int) {
	t.Helper()
	rules := loadRules
	rules.LosesData, rules.LosesIn = true, s.all
	figures := l.w.Verify(rules)
	require.Positive(t, figures.Lost)
	again := s.undone(t, l.w.History())
	require.Positive(t, again, "acks are lost, too")
	faulttest.Report(t, fmt.Sprintf("%d acked messages came again; %d rounds, at most %v lost", again, rounds, s.most.Round(10*time.Millisecond)))
}

// undone counts the messages that came again after their ack was confirmed, and fails the test for
// those whose ack was safe.
func (s *spans) undone(t *testing.T, history []faulttest.Event) (again int) {
	t.Helper()
	type place struct{ topic, group, id string }
	acked := map[place]faulttest.Event{}
	for _, e := range history { // in the order of time
		at := place{e.Topic, e.Group, e.ID}
		switch ack, known := acked[at]; {
		case e.Kind == faulttest.Settled && e.Script == "ack" && e.Count == e.Of && !known:
			acked[at] = e
		case e.Kind == faulttest.Claimed && known && e.Sent > ack.At:
			under := func(span faulttest.Span) bool {
				return ack.At > span.Safe && ack.Sent < span.Killed && e.At > span.Safe
			}
			if !slices.ContainsFunc(s.all, under) {
				t.Errorf("%v was claimed after its ack was confirmed, %v, which was safe", e, ack)
			}
			again++
			delete(acked, at)
		}
	}
	return again
}
