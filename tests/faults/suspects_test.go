package faults

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/redisdelay/watermill-redisdelay/internal/faulttest"
	"github.com/redisdelay/watermill-redisdelay/internal/queue"
	"github.com/redisdelay/watermill-redisdelay/internal/redistest"
)

// inHandOf has a process take messages and never end them, and returns it.
func inHandOf(w *faulttest.World, name string, messages, leaseMS int, do string) *faulttest.Running {
	victim := w.Start(faulttest.Worker{Role: faulttest.Consumer, Name: name, Stuck: true, InFlight: messages, LeaseMS: leaseMS})[0]
	w.Await(w.Start(faulttest.Worker{Role: faulttest.Publisher, Name: "before", Messages: messages, Batch: messages, Do: []string{do}})...)
	w.Handled(messages)
	return victim
}

// lateness returns how late the handlers of a publisher's messages began, sorted.
func lateness(w *faulttest.World, publisher string) (late []time.Duration) {
	for _, e := range w.History() {
		if e.Kind == faulttest.Start && strings.HasPrefix(e.UUID, publisher) {
			late = append(late, time.Duration(e.Redis-e.Due*1000)*time.Microsecond)
		}
	}
	slices.Sort(late)
	return late
}

// lastEnd returns when the last handler has ended, in ns.
func lastEnd(w *faulttest.World) (at int64) {
	for _, e := range w.History() {
		if e.Kind == faulttest.End {
			at = max(at, e.At)
		}
	}
	return at
}

func TestMessagesOfACrashedProcessComeBackTogether(t *testing.T) {
	t.Parallel()
	faulttest.Case(t, "kill -9 of a process with 60 messages in hand, lease 2 s, handlers of 0.3 s: its successor has handled all of them 1.5 s after the lease at the latest, and fresh messages are 0.5 s late at most")
	w := faulttest.NewWorld(t, faulttest.At(redistest.Start(t).Addr()))
	victim := inHandOf(w, "victim", 60, 2000, faulttest.Work(300*time.Millisecond))
	w.Start(faulttest.Worker{Role: faulttest.Consumer, Name: "successor", InFlight: 60, LeaseMS: 2000})
	victim.Kill()
	killed := time.Now()
	w.Await(w.Start(faulttest.Worker{Role: faulttest.Publisher, Name: "fresh", Messages: 80, PauseMS: 50})...)
	w.Drain(time.Minute)
	took := time.Duration(lastEnd(w) - killed.UnixNano())
	late := lateness(w, "fresh")
	figures := w.Verify(faulttest.Rules{Return: byPoll})
	require.Equal(t, 60, figures.Redeliveries)
	require.Less(t, took, 5*time.Second) // of which publishing takes 4
	require.Less(t, figures.Back, 1200*time.Millisecond, "all but their handlers' 0.3 s")
	require.Less(t, late[len(late)-1], 500*time.Millisecond)
	faulttest.Report(t, fmt.Sprintf("the last of the 60 was claimed %v after its lease, fresh ones %v late at most", figures.Back, late[len(late)-1]))
}

func TestServerStoppedForLongerThanTheLeaseMakesNothingSuspect(t *testing.T) {
	t.Parallel()
	rounds := faulttest.Pick(2, 10)
	faulttest.Case(t, "Redis is stopped for 2.5 s, the lease is 1 s, and 8 handlers take 3 s each: all are done 4 s after Redis answers, as parallel as they were, and again when it stops again")
	server := redistest.Start(t)
	w := faulttest.NewWorld(t, faulttest.At(server.Addr()))
	w.Start(faulttest.Worker{Role: faulttest.Consumer, Name: "consumer", InFlight: 8, LeaseMS: 1000, MaxDeliveries: 2})
	worst := time.Duration(0)
	begun := 0
	for round := range rounds {
		w.Await(w.Start(faulttest.Worker{
			Role: faulttest.Publisher, Name: fmt.Sprint("publisher-", round), Messages: 8, Batch: 8, Do: []string{faulttest.Work(3 * time.Second)},
		})...)
		w.Handled(begun + 8)
		server.Pause()
		time.Sleep(2500 * time.Millisecond) // the fault itself
		server.Resume()
		resumed := time.Now()
		w.Handled(begun + 16)
		begun += 16
		w.Drain(time.Minute)
		worst = max(worst, time.Duration(lastEnd(w)-resumed.UnixNano()))
		suspects, err := w.Client.HLen(t.Context(), queue.NewKeys(w.Prefix, "t").Suspects("g")).Result()
		require.NoError(t, err)
		require.Zero(t, suspects)
	}
	figures := w.Verify(faulttest.Rules{MaxDeliveries: 2})
	require.Zero(t, figures.Dead)
	require.Less(t, worst, 4*time.Second)
	faulttest.Report(t, fmt.Sprintf("%d rounds, the last handler ended %v after Redis answered", rounds, worst.Round(time.Millisecond)))
}

func TestFreshMessagesDoNotWaitForThoseOfACrashedProcess(t *testing.T) {
	t.Parallel()
	faulttest.Case(t, "three healthy consumers beside one that is killed with 20 messages in hand: 99 of 100 fresh messages are 50 ms late at most")
	w := faulttest.NewWorld(t, faulttest.At(redistest.Start(t).Addr()))
	victim := inHandOf(w, "victim", 20, 1000, faulttest.Work(20*time.Millisecond))
	for i := range 3 {
		w.Start(faulttest.Worker{Role: faulttest.Consumer, Name: fmt.Sprint("healthy-", i), InFlight: 10, LeaseMS: 1000})
	}
	fresh := w.Start(faulttest.Worker{Role: faulttest.Publisher, Name: "fresh", Messages: faulttest.Pick(400, 2000), PauseMS: 5})
	victim.Kill()
	w.Await(fresh...)
	w.Drain(time.Minute)
	late := lateness(w, "fresh")
	figures := w.Verify(faulttest.Rules{Return: byPoll})
	require.Equal(t, 20, figures.Redeliveries)
	p99 := late[len(late)*99/100]
	require.Less(t, p99, 50*time.Millisecond)
	faulttest.Report(t, fmt.Sprintf("p99 of %d fresh messages: %v late", len(late), p99))
}

func TestPoisonAmongSixtyDiesAlone(t *testing.T) {
	t.Parallel()
	for _, poisons := range []int{1, 2, 8} {
		t.Run(fmt.Sprint(poisons), func(t *testing.T) {
			t.Parallel()
			faulttest.Case(t, "messages that kill their process, among 60 others in the hands of two consumers: each is dead after a few crashes, and no other loses a delivery")
			w := faulttest.NewWorld(t, faulttest.At(redistest.Start(t).Addr()))
			do := slices.Repeat([]string{faulttest.Work(10 * time.Millisecond)}, 60)
			do = slices.Insert(do, 20, slices.Repeat([]string{faulttest.Die}, poisons)...)
			w.Await(w.Start(faulttest.Worker{Role: faulttest.Publisher, Name: "publisher", Messages: len(do), Batch: len(do), Do: do})...)
			var ends []func()
			for i, most := range []int{60, 5} {
				ends = append(ends, w.Start(faulttest.Worker{
					Role: faulttest.Consumer, Name: fmt.Sprint("consumer-", i), InFlight: most, LeaseMS: 200, MaxDeliveries: 2,
				})[0].Respawn())
			}
			w.Drain(5 * time.Minute)
			for _, end := range ends {
				end()
			}
			history := w.History()
			figures := w.Verify(faulttest.Rules{MaxDeliveries: 2, Return: afterDeaths})
			require.Equal(t, poisons, figures.Dead)
			most := map[string]int{}
			for _, e := range history {
				if e.Kind == faulttest.Claimed {
					most[e.ID]++
				}
			}
			deaths := 0
			for _, n := range most {
				deaths = max(deaths, n)
			}
			require.LessOrEqual(t, deaths, 2+2+5, "claims of a poison message: MaxDeliveries + 2 + log2(60)")
			faulttest.Report(t, fmt.Sprintf("the longest-lived was claimed %d times", deaths))
		})
	}
}
