package redisdelay_test

import (
	"io"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	redisdelay "github.com/redisdelay/watermill-redisdelay"
	"github.com/redisdelay/watermill-redisdelay/internal/test/redistest"
	"github.com/redisdelay/watermill-redisdelay/internal/test/testkit"
)

func TestAnOutageIsLoggedOnceAndSurvived(t *testing.T) {
	s, in := private(t, "--appendonly", "yes", "--appendfsync", "always")
	calls, told := counter(s.Client, s.Prefix), counter(s.Client, ":leases:") // the others are of the scheduler
	book := &logbook{}
	sub := newLoggingSubscriber(t, s, book.logger(), inFlight(10))
	messages := subscribeTo(t, sub, "t")
	p := newPublisher(t, s)
	publish(t, p, "t", "in hand")
	held := receive(t, messages)

	for outage := 1; outage <= 2; outage++ {
		// Both have something to do before their next polls.
		require.NoError(t, p.Publish("t", text("settled"), delayed("delayed", 300*time.Millisecond)))
		settled := receive(t, messages)
		in.Kill()
		require.True(t, settled.Ack())
		require.Error(t, p.Publish("t", text("refused")))
		failedTold, failedLooks := told.failures(), calls.failures()-told.failures()
		eventually(t, func() bool {
			return told.failures() > failedTold+3 && calls.failures()-told.failures() > failedLooks+3
		}, "many attempts")
		in.Restart()
		for _, component := range []string{"redisdelay.subscriber", "redisdelay.scheduler"} {
			eventually(t, func() bool { return book.count("info", component) == outage }, component+" is back")
			require.Len(t, book.find("error", component), outage)
		}
		require.Equal(t, []string{"delayed"}, consume(t, messages, 1))
	}
	require.True(t, held.Ack())
	require.NoError(t, p.Publish("t", text("after"), delayed("after", 10*time.Millisecond)))
	require.Equal(t, []string{"after", "after"}, consume(t, messages, 2))
	require.NoError(t, sub.Close())
	eventually(t, func() bool { return stateOf(t, s, "t") == state{} }, "everything is gone")
}

// The client says of a call alone that it was refused. Of a call in a pipeline, it did not say so.
func TestSettlementsDuringAnOutageAreToldLater(t *testing.T) {
	for how, settle := range map[string]struct {
		settle func(*message.Message) bool
		want   state
	}{
		"ack":  {(*message.Message).Ack, state{}},
		"nack": {(*message.Message).Nack, state{Bodies: 1, Retrying: 1}},
	} {
		t.Run(how, func(t *testing.T) {
			s, in := private(t, "--appendonly", "yes", "--appendfsync", "always")
			claims := counter(s.Client, ":claim:")
			messages := subscribe(t, s, "t", leaseOf(never), func(c *redisdelay.SubscriberConfig) {
				c.Backoff = func(int) time.Duration { return never }
			})
			publish(t, newPublisher(t, s), "t", "x")
			held := receive(t, messages)

			in.Kill()
			failed := claims.failures()
			require.True(t, settle.settle(held))
			eventually(t, func() bool { return claims.failures() > failed+1 }, "attempts")
			in.Restart()
			eventually(t, func() bool { return stateOf(t, s, "t") == settle.want }, "Redis knows")
		})
	}
}

func TestASubscriptionSurvivesTheLossOfAllData(t *testing.T) {
	losses := map[string]func(t *testing.T, s redistest.Server, in *redistest.Instance){
		"FLUSHALL": func(t *testing.T, s redistest.Server, _ *redistest.Instance) {
			require.NoError(t, s.Client.FlushAll(ctx).Err())
		},
		"SCRIPT FLUSH too": func(t *testing.T, s redistest.Server, _ *redistest.Instance) {
			require.NoError(t, s.Client.FlushAll(ctx).Err())
			require.NoError(t, s.Client.ScriptFlush(ctx).Err())
			testkit.LookNow(t, s) // else they do at their poll
		},
		"restart": func(_ *testing.T, _ redistest.Server, in *redistest.Instance) { in.Restart() },
	}
	for name, lose := range losses {
		t.Run(name, func(t *testing.T) {
			s, in := private(t)
			s.Client = in.Client(t)
			p := newPublisher(t, s)
			idle := subscribe(t, s, "t")
			busy := subscribe(t, s, "busy", inFlight(2))
			publish(t, p, "t", "lost")
			publish(t, p, "busy", "lost")
			consume(t, idle, 1)
			lost := receive(t, busy)

			lose(t, s, in)
			for topic, messages := range map[string]<-chan *message.Message{"t": idle, "busy": busy} {
				require.NoError(t, p.Publish(topic, text("now"), delayed("later", 20*time.Millisecond)))
				require.Equal(t, []string{"now", "later"}, consume(t, messages, 2))
			}
			require.True(t, lost.Ack(), "it concerns nobody")
			publish(t, p, "busy", "after")
			require.Equal(t, []string{"after"}, consume(t, busy, 1))
		})
	}
}

// loading is what a server answers while it reads its data from disk.
type loading struct{}

func (loading) Error() string { return "LOADING Redis is loading the dataset in memory" }
func (loading) RedisError()   {}

func TestAnOutageOfSeveralKindsIsLoggedOnce(t *testing.T) {
	t.Parallel()
	_, client := redistest.Embedded(t)
	s := redistest.On(t, client, "test")
	calls, claims := counter(s.Client, s.Prefix), counter(s.Client, ":claim:")
	faults := failing(s.Client, s.Prefix)
	book := &logbook{}
	messages := subscribeTo(t, newLoggingSubscriber(t, s, book.logger()), "t")

	for _, fault := range []error{io.EOF, loading{}} {
		failedClaims, failedLooks := claims.failures(), calls.failures()-claims.failures()
		faults.fail(fault)
		eventually(t, func() bool {
			return claims.failures() > failedClaims && calls.failures()-claims.failures() > failedLooks+1
		}, "attempts")
	}
	faults.fail(nil)
	for _, component := range []string{"redisdelay.subscriber", "redisdelay.scheduler"} {
		eventually(t, func() bool { return book.count("info", component) == 1 }, component+" is back")
		require.Len(t, book.find("error", component), 1)
	}
	publish(t, newPublisher(t, s), "t", "after")
	require.Equal(t, []string{"after"}, consume(t, messages, 1))
}
