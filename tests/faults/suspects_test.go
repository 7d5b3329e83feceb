package faults

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/redisdelay/watermill-redisdelay/internal/queue"
	"github.com/redisdelay/watermill-redisdelay/internal/test/faulttest"
	"github.com/redisdelay/watermill-redisdelay/internal/test/redistest"
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

func TestMessagesOfACrashedProcessComeBackTogether(t *testing.T) {
	t.Parallel()
	faulttest.Case(t, "kill -9 of a process with 60 messages in hand: its successor has all of them in hand at once after the lease, as many as it had, and handles fresh ones beside them")
	w := faulttest.NewWorld(t, faulttest.At(redistest.Start(t).Addr()))
	victim := inHandOf(w, "victim", 60, 2000, faulttest.Hold("all"))
	w.Start(faulttest.Worker{Role: faulttest.Consumer, Name: "successor", InFlight: 70, LeaseMS: 2000})
	victim.Kill()
	w.Handled(60 + 60) // none of them ends before
	w.Await(w.Start(faulttest.Worker{Role: faulttest.Publisher, Name: "fresh", Messages: 80})...)
	w.Handled(60 + 60 + 80)
	w.Release("all")
	figures := w.Verify(faulttest.Rules{Return: soon})
	require.Equal(t, 60, figures.Redeliveries)
	late := lateness(w, "fresh")
	faulttest.Report(t, fmt.Sprintf("the last of the 60 was claimed %v after its lease, fresh ones %v late at most", figures.Back, late[len(late)-1]))
}

func TestServerStoppedForLongerThanTheLeaseMakesNothingSuspect(t *testing.T) {
	t.Parallel()
	rounds := faulttest.Pick(2, 10)
	faulttest.Case(t, "Redis is stopped for longer than the lease of 8 messages in hand: all 8 are in hand again, as parallel as they were, a second after another lease at the latest; none is a suspect afterwards, and again when it stops again")
	server := redistest.Start(t)
	l := &load{w: faulttest.NewWorld(t, faulttest.At(server.Addr()))}
	l.w.Start(faulttest.Worker{Role: faulttest.Consumer, Name: "consumer", InFlight: 8, LeaseMS: 1000, MaxDeliveries: 2})
	worst := time.Duration(0)
	for round := range rounds {
		name := fmt.Sprint("hold-", round)
		held := l.hold(t, name, 8)
		server.Pause()
		l.awaitOver(t, held)
		stalls, resumed := faulttest.Stalls(t, l.w.Client), time.Now()
		server.Resume()
		l.awaitAgain(t, held)
		worst = max(worst, time.Since(resumed)-stalls())
		l.w.Handled(16 * (round + 1)) // none of them ends before
		l.w.Release(name)
		l.w.Drain(time.Minute)
		suspects, err := l.w.Client.HLen(t.Context(), queue.NewKeys(l.w.Prefix, "t").Suspects("g")).Result()
		require.NoError(t, err)
		require.Zero(t, suspects)
	}
	figures := l.w.Verify(faulttest.Rules{MaxDeliveries: 2})
	require.Zero(t, figures.Dead)
	require.Less(t, worst, 2*time.Second) // a lease, because a call that waited may extend it once more, and a second
	faulttest.Report(t, fmt.Sprintf("%d rounds, the last of the 8 was in hand again %v after Redis answered", rounds, worst.Round(time.Millisecond)))
}

func TestFreshMessagesDoNotWaitForThoseOfACrashedProcess(t *testing.T) {
	t.Parallel()
	faulttest.Case(t, "three healthy consumers beside one that is killed with 20 messages in hand, which come back: 99 of 100 fresh messages are 50 ms late at most")
	w := faulttest.NewWorld(t, faulttest.At(redistest.Start(t).Addr()))
	victim := inHandOf(w, "victim", 20, 1000, faulttest.Work(20*time.Millisecond))
	for i := range 3 {
		w.Start(faulttest.Worker{Role: faulttest.Consumer, Name: fmt.Sprint("healthy-", i), InFlight: 10, LeaseMS: 1000})
	}
	stalls := faulttest.Stalls(t, w.Client)
	fresh := w.Start(faulttest.Worker{Role: faulttest.Publisher, Name: "fresh", Messages: faulttest.Pick(400, 2000), PauseMS: 5})
	victim.Kill()
	w.Await(fresh...)
	w.Drain(time.Minute)
	stalled := stalls()
	late := lateness(w, "fresh")
	figures := w.Verify(faulttest.Rules{Return: byPoll})
	require.Equal(t, 20, figures.Redeliveries)
	p99 := late[len(late)*99/100]
	require.Less(t, p99, 50*time.Millisecond+stalled)
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
