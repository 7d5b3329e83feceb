package faults

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/redisdelay/watermill-redisdelay/internal/faulttest"
	"github.com/redisdelay/watermill-redisdelay/internal/redistest"
)

// every calls f again and again, until the returned function is called, which returns how often that was.
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
	flushes := every(10*time.Millisecond, func() { l.w.Client.ScriptFlush(t.Context()) })
	l.progress(t, faulttest.Pick(300, 5000))
	n := flushes()
	figures := l.w.Verify(loadRules)
	require.Zero(t, figures.Refused+figures.Unknown)
	faulttest.Report(t, fmt.Sprintf("%d flushes", n))
}

// Every script that workers call, with which replies get lost in TestRepliesSwallowed.
var scriptsOfWorkers = []string{"open", "register", "publish", "claim", "ack", "nack", "release", "extend", "promote", "expire", "resign", "cancel"}

func TestRepliesSwallowed(t *testing.T) {
	t.Parallel()
	for _, script := range scriptsOfWorkers {
		for name, swallow := range map[string]int{"once": 1, "until the client gives up": 6} {
			t.Run(script+" "+name, func(t *testing.T) {
				t.Parallel()
				faulttest.Case(t, "the server does what was asked and the reply is lost: nothing is doubled, lost, or counted twice")
				repliesSwallowed(t, script, swallow)
			})
		}
	}
}

// repliesSwallowed has a script's replies get lost several times under load: n in a row each time.
func repliesSwallowed(t *testing.T, script string, n int) {
	server := redistest.Start(t)
	p := faulttest.NewProxy(t, server.Addr())
	rounds, swallowed := faulttest.Pick(2, 20), 0
	chooses := faulttest.Script(script)
	once := script == "open" || script == "register" || script == "resign" || script == "release"
	if once { // only called as workers begin or end
		p.Swallow(n, chooses)
	}
	l := newLoad(t, server, p.Place(), func(w *faulttest.Worker) {
		w.LeaseMS = 300
		if script == "extend" || script == "expire" {
			w.WorkMS = 150
		}
	})
	for range rounds {
		l.progress(t, 20)
		if script == "expire" {
			l.consumers[0].Kill()
			successor := l.consumers[0].Worker
			successor.Name += "x"
			p.Swallow(n, chooses)
			l.consumers[0] = l.w.Start(successor)[0]
		} else if !once {
			p.Swallow(n, chooses)
		}
		if !once {
			require.Eventually(t, func() bool { return p.Swallowed() == n }, time.Minute, time.Millisecond)
			swallowed += n
		}
	}
	rules := loadRules
	l.w.Verify(rules)
	if once {
		swallowed = p.Swallowed()
	}
	faulttest.Report(t, fmt.Sprintf("%d replies lost", swallowed))
}

func TestClaimedBatchWhoseReplyIsLostComesInUnderASecond(t *testing.T) {
	t.Parallel()
	faulttest.Case(t, "a claim whose reply is lost strands nothing: its batch is handed over within a second, not after the lease of 30 s, and no delivery is counted")
	for name, n := range map[string]int{"once": 1, "until the client gives up": 4} {
		t.Run(name, func(t *testing.T) {
			server := redistest.Start(t)
			p := faulttest.NewProxy(t, server.Addr())
			w := faulttest.NewWorld(t, faulttest.At(server.Addr()))
			w.Start(faulttest.Worker{Role: faulttest.Consumer, Name: "consumer", Place: p.Place(), InFlight: 10, LeaseMS: 30_000})
			w.AwaitEvents(faulttest.Answer, 1)
			p.Swallow(n, faulttest.Script("claim"))
			w.Await(w.Start(faulttest.Worker{Role: faulttest.Publisher, Name: "publisher", Messages: 10, Batch: 10, DelaysMS: []int{50}})...)
			figures := w.Verify(faulttest.Rules{MaxDeliveries: 1})
			require.Equal(t, n, p.Swallowed())
			require.Equal(t, 10, figures.Deliveries)
			require.Less(t, figures.Handed, time.Second)
			faulttest.Report(t, fmt.Sprintf("handed over %v after it was due", figures.Handed.Round(time.Millisecond)))
		})
	}
}
