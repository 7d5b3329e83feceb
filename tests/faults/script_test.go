package faults

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/redisdelay/watermill-redisdelay/internal/queue"
	"github.com/redisdelay/watermill-redisdelay/internal/test/faulttest"
	"github.com/redisdelay/watermill-redisdelay/internal/test/redistest"
)

// every calls f again and again, until the returned function is called, which returns how often
// that was.
func every(d time.Duration, f func()) (end func() int) {
	stop, done := make(chan struct{}), make(chan struct{})
	times := 0
	go func() {
		defer close(done)
		for {
			select {
			case <-stop:
				return
			case <-time.After(d):
				f()
				times++
			}
		}
	}()
	return func() int {
		close(stop)
		<-done
		return times
	}
}

func TestScriptsFlushedAllTheTime(t *testing.T) {
	t.Parallel()
	faulttest.Case(t, "SCRIPT FLUSH every 10 ms: no call fails for it, in pipelines either, and nothing is out of order or twice")
	server := redistest.Start(t)
	l := newLoad(t, server, faulttest.Place{})
	l.progress(t, 1)
	operator := server.Client(t)
	before, failed := loaded(t, operator, 0), []error(nil)
	flushes := every(10*time.Millisecond, func() {
		if err := operator.ScriptFlush(t.Context()).Err(); err != nil {
			failed = append(failed, err)
		}
	})
	l.progress(t, faulttest.Pick(300, 5000))
	n := flushes()
	again := loaded(t, operator, n) - before
	figures := l.w.Verify(loadRules)
	require.Zero(t, figures.Refused+figures.Unknown)
	require.Empty(t, failed)
	require.Positive(t, again, "no call met a server without its script")
	faulttest.Report(t, fmt.Sprintf("%d flushes; %d times a script was loaded again", n, again))
}

// loaded is how many scripts a server has been given to keep. Redis 6.2 counts them together with
// flushes.
func loaded(t *testing.T, client redis.UniversalClient, flushes int) (n int) {
	t.Helper()
	info, err := client.Info(t.Context(), "commandstats").Result()
	require.NoError(t, err)
	for line := range strings.Lines(info) {
		switch {
		case strings.HasPrefix(line, "cmdstat_script|load:"):
			_, err = fmt.Sscanf(line, "cmdstat_script|load:calls=%d", &n)
		case strings.HasPrefix(line, "cmdstat_script:"):
			_, err = fmt.Sscanf(line, "cmdstat_script:calls=%d", &n)
			n -= flushes
		}
		require.NoError(t, err)
	}
	return n
}

// scriptsOfWorkers are the scripts that workers call under load.
var scriptsOfWorkers = []string{"open", "register", "publish", "claim", "ack", "nack", "release", "extend", "promote", "expire", "resign", "cancel", "permit"}

func TestRepliesSwallowed(t *testing.T) {
	t.Parallel()
	for script := range queue.Scripts() {
		swallowed := operatorsRepliesSwallowed
		if slices.Contains(scriptsOfWorkers, script) {
			swallowed = repliesSwallowed
		} else if _, ok := operations[script]; !ok {
			t.Errorf("nothing here makes a call of script %q", script)
			continue
		}
		for name, n := range map[string]int{"once": 1, "until the client gives up": clientTries} {
			t.Run(script+" "+name, func(t *testing.T) {
				t.Parallel()
				faulttest.Case(t, "the server does what was asked and the reply is lost: nothing is doubled, lost, or counted twice")
				swallowed(t, script, n)
			})
		}
	}
}

// clientTries is how often go-redis sends a call, if there is no reply.
const clientTries = 4

// repliesSwallowed has a script's replies get lost several times under load: n to one call each
// time.
func repliesSwallowed(t *testing.T, script string, n int) {
	server := redistest.Start(t)
	p := faulttest.NewProxy(t, server.Addr())
	chooses := faulttest.Script(script)
	start := func() *load {
		return newLoad(t, server, p.Place(), func(w *faulttest.Worker) {
			w.LeaseMS = 400
			if script == "extend" || script == "release" || script == "expire" {
				w.WorkMS, w.PauseMS = 300, 400 // longer than a lease goes unextended, and than a claimed message waits
			}
		})
	}
	if script == "open" || script == "register" || script == "resign" || script == "permit" { // of workers that begin or end
		p.Swallow(n, chooses)
		l := start()
		l.progress(t, 20)
		l.w.Verify(loadRules)
		require.Equal(t, n, p.Swallowed())
		faulttest.Report(t, fmt.Sprintf("%d replies lost", n))
		return
	}
	l, rounds, missed := start(), faulttest.Pick(1, 20), 0
	for round := 0; round < rounds; {
		l.progress(t, 20)
		if script == "expire" {
			l.consumers[0].Kill()
		}
		p.SwallowOfOne(n, chooses)
		if script == "expire" {
			successor := l.consumers[0].Worker
			successor.Name = fmt.Sprintf("%s.%d", successor.Name, round+missed)
			l.consumers[0] = l.w.Start(successor)[0]
		}
		if faulttest.Holds(func() bool { return p.Swallowed() == n }, 15*time.Second, time.Millisecond) {
			round++
			continue
		}
		missed++ // its worker has ended, or was killed, with the call on its way, and does not send it so often
		require.Less(t, missed, 3+rounds, "no call was sent %d times", n)
	}
	figures := l.w.Verify(loadRules)
	if script == "publish" && n == clientTries {
		require.GreaterOrEqual(t, figures.Unknown, rounds, "calls of Publish that were given up")
	}
	faulttest.Report(t, fmt.Sprintf("%d replies lost", rounds*n))
}

func TestPublishThatIsSentAgainAfterItsMessagesWereAcked(t *testing.T) {
	t.Parallel()
	faulttest.Case(t, "a publish whose reply is lost is sent again by the client when its messages were delivered and acked already: they do not come back")
	server := redistest.Start(t)
	p := faulttest.NewProxy(t, server.Addr())
	w := faulttest.NewWorld(t, faulttest.At(server.Addr()))
	w.Start(faulttest.Worker{Role: faulttest.Consumer, Name: "consumer"})
	publisher := w.Start(faulttest.Worker{Role: faulttest.Publisher, Name: "publisher", Place: p.Place(), ReadTimeoutMS: 1000, Messages: 60, Batch: 3, PauseMS: 100})
	for lost := 1; lost <= 3; lost++ { // of 20 calls
		p.SwallowSilently(1, faulttest.Script("publish"))
		faulttest.Eventually(t, func() bool { return p.Swallowed() == 1 }, time.Minute, time.Millisecond)
		acked := func() bool { return w.Count(faulttest.Settled) == w.Count(faulttest.Publish) }
		faulttest.Eventually(t, acked, 900*time.Millisecond, time.Millisecond) // before the client gives up waiting
	}
	w.Await(publisher...)
	figures := w.Verify(faulttest.Rules{MaxDeliveries: 1})
	require.Equal(t, 60, figures.Published)
	require.Equal(t, 60, figures.Deliveries)
	require.Zero(t, figures.Unknown)
	faulttest.Report(t, "3 replies lost")
}

func TestClaimedBatchWhoseReplyIsLostComesInUnderASecond(t *testing.T) { // not beside others, which make it late
	for name, n := range map[string]int{"once": 1, "until the client gives up": clientTries} {
		t.Run(name, func(t *testing.T) {
			faulttest.Case(t, "a claim whose reply is lost strands nothing: its batch is handed over within a second, not after the lease of 30 s, and no delivery is counted")
			server := redistest.Start(t)
			p := faulttest.NewProxy(t, server.Addr())
			w := faulttest.NewWorld(t, faulttest.At(server.Addr()))
			w.Start(faulttest.Worker{Role: faulttest.Consumer, Name: "consumer", Place: p.Place(), InFlight: 10, LeaseMS: 30_000})
			w.AwaitEvents(faulttest.Answer, 1)
			stalls := faulttest.Stalls(t, server.Client(t))
			p.Swallow(n, faulttest.Script("claim"))
			w.Await(w.Start(faulttest.Worker{Role: faulttest.Publisher, Name: "publisher", Messages: 10, Batch: 10, DelaysMS: []int{50}})...)
			figures := w.Verify(faulttest.Rules{MaxDeliveries: 1})
			require.Equal(t, n, p.Swallowed())
			require.Equal(t, 10, figures.Deliveries)
			require.Less(t, figures.Handed, time.Second+stalls())
			faulttest.Report(t, fmt.Sprintf("handed over %v after it was due", figures.Handed.Round(time.Millisecond)))
		})
	}
}
