package periodic

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/message/router/middleware"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	redisdelay "github.com/redisdelay/watermill-redisdelay"
	"github.com/redisdelay/watermill-redisdelay/admin"
	"github.com/redisdelay/watermill-redisdelay/internal/test/redistest"
	"github.com/redisdelay/watermill-redisdelay/internal/test/testkit"
)

// overlapping publishes messages, two of one schedule and one of none, and returns them as they are
// delivered, beside a handler with the middleware that tells what it handles and goes on when told.
func overlapping(t *testing.T, s redistest.Server, policy OverlapPolicy, log *capture) (messages map[string]*message.Message, handle message.HandlerFunc, begun chan string, goOn chan struct{}) {
	pub := testkit.NewPublisher(t, s)
	sub := testkit.NewSubscriber(t, s, func(c *redisdelay.SubscriberConfig) { c.MaxInFlight = 10 })
	in := testkit.SubscribeTo(t, sub, "t")
	for i, name := range []string{"first", "second", "plain"} {
		msg := message.NewMessage(name, nil)
		if name != "plain" {
			msg = Occurrence{Schedule: "s", At: begin.Add(time.Duration(i) * time.Hour)}.stamp(msg, begin)
		}
		testkit.Publish(t, pub, "t", msg)
	}
	messages = map[string]*message.Message{}
	for range 3 {
		msg := testkit.Receive(t, in)
		messages[msg.UUID] = msg
	}
	middleware, err := Overlap(OverlapConfig{Client: s.Client, KeyPrefix: s.Prefix, Policy: policy, Wait: time.Millisecond}, log)
	require.NoError(t, err)
	begun, goOn = make(chan string, 10), make(chan struct{})
	return messages, middleware(func(msg *message.Message) ([]*message.Message, error) {
		begun <- msg.UUID
		<-goOn
		return nil, nil
	}), begun, goOn
}

func TestOverlap(t *testing.T) {
	for policy, handled := range map[OverlapPolicy]bool{OverlapAllow: true, OverlapSkip: false, OverlapQueue: false} {
		t.Run(string(policy), func(t *testing.T) {
			testkit.Both(t, func(t *testing.T, s redistest.Server) {
				log := &capture{}
				messages, handle, begun, goOn := overlapping(t, s, policy, log)
				results := make(chan error, 3)
				run := func(name string) {
					go func() { _, err := handle(messages[name]); results <- err }()
				}
				run("first")
				require.Equal(t, "first", testkit.Wait(t, begun, "the first"))
				run("plain")
				require.Equal(t, "plain", testkit.Wait(t, begun, "a message of no schedule"))
				run("first") // delivered again
				require.Equal(t, "first", testkit.Wait(t, begun, "the first again"))
				run("second")
				if handled {
					require.Equal(t, "second", testkit.Wait(t, begun, "the second"))
					goOn <- struct{}{}
				} else if err := testkit.Wait(t, results, "the second"); policy == OverlapSkip {
					require.NoError(t, err)
					require.Equal(t, 1, log.count("Skipped an occurrence"))
				} else {
					var postponed *redisdelay.PostponeError
					require.ErrorAs(t, err, &postponed)
					require.ErrorIs(t, err, errOverlap)
				}
				for range 3 {
					goOn <- struct{}{}
					require.NoError(t, testkit.Wait(t, results, "the end"))
				}
				if !handled {
					run("second")
					require.Equal(t, "second", testkit.Wait(t, begun, "the second after the first"))
					goOn <- struct{}{}
				}
				require.NoError(t, testkit.Wait(t, results, "the end"))
				for _, msg := range messages {
					msg.Ack()
				}
			})
		})
	}
}

// An occurrence that failed is handled again, although later ones are in hand when its retries
// come.
func TestOverlapSkipHandlesWhatFailedBefore(t *testing.T) {
	testkit.Both(t, func(t *testing.T, s redistest.Server) {
		log := &capture{}
		pub := testkit.NewPublisher(t, s)
		sub := testkit.NewSubscriber(t, s, func(c *redisdelay.SubscriberConfig) {
			c.MaxInFlight = 10
			c.Backoff = func(int) time.Duration { return 0 }
		})
		in := testkit.SubscribeTo(t, sub, "t")
		middleware, err := Overlap(OverlapConfig{Client: s.Client, KeyPrefix: s.Prefix, Wait: time.Millisecond}, log)
		require.NoError(t, err)
		begun, goOn, ended := make(chan string, 10), make(chan error), make(chan error, 10)
		handle := middleware(func(msg *message.Message) ([]*message.Message, error) {
			begun <- msg.UUID
			return nil, <-goOn
		})
		deliver := func(name string) *message.Message {
			hours := map[string]time.Duration{"first": 1, "second": 2, "third": 3, "fourth": 4}
			testkit.Publish(t, pub, "t", Occurrence{Schedule: "s", At: begin.Add(hours[name] * time.Hour)}.stamp(message.NewMessage(name, nil), begin))
			return testkit.Receive(t, in)
		}
		run := func(msg *message.Message) { go func() { _, err := handle(msg); ended <- err }() }
		end := func(result error) {
			goOn <- result
			require.ErrorIs(t, testkit.Wait(t, ended, "the end"), result)
		}
		failed := errors.New("it failed")

		first := deliver("first")
		run(first)
		require.Equal(t, "first", testkit.Wait(t, begun, "the first"))
		end(failed)
		first.Nack()
		first = testkit.Receive(t, in)
		require.Equal(t, "first", first.UUID)

		second := deliver("second")
		run(second)
		require.Equal(t, "second", testkit.Wait(t, begun, "the second"))
		_, err = handle(first)
		require.ErrorIs(t, err, errOverlap, "it is postponed, and not acked")
		first.Nack()
		first = testkit.Receive(t, in)
		end(nil)
		second.Ack()

		third := deliver("third")
		_, err = handle(third)
		require.NoError(t, err, "the one that failed comes first")
		third.Ack()
		require.Equal(t, 1, log.count("Skipped an occurrence"))
		run(first)
		require.Equal(t, "first", testkit.Wait(t, begun, "the first again"))
		end(nil)
		first.Ack()

		fourth := deliver("fourth")
		run(fourth)
		require.Equal(t, "fourth", testkit.Wait(t, begun, "a later one"))
		end(nil)
		fourth.Ack()
		a, err := admin.New(admin.Config{Client: s.Client, KeyPrefix: s.Prefix})
		require.NoError(t, err)
		stats, err := a.Stats(context.Background(), "t")
		require.NoError(t, err)
		require.Equal(t, 1, stats.Groups[0].Counters.Skipped)
	})
}

// A try of Watermill's Retry is no new occurrence either. If the last try failed, the delivery
// counts, although an earlier one was postponed.
func TestOverlapSkipHandlesWhatFailedInAnEarlierTry(t *testing.T) {
	testkit.Both(t, func(t *testing.T, s redistest.Server) {
		log := &capture{}
		pub := testkit.NewPublisher(t, s)
		sub := testkit.NewSubscriber(t, s, func(c *redisdelay.SubscriberConfig) {
			c.MaxInFlight = 10
			c.Backoff = func(int) time.Duration { return 0 }
		})
		in := testkit.SubscribeTo(t, sub, "t")
		overlap, err := Overlap(OverlapConfig{Client: s.Client, KeyPrefix: s.Prefix, Wait: time.Hour}, log)
		require.NoError(t, err)
		deliver := func(name string, at time.Time) *message.Message {
			testkit.Publish(t, pub, "t", Occurrence{Schedule: "s", At: at}.stamp(message.NewMessage(name, nil), begin))
			return testkit.Receive(t, in)
		}
		first, second := deliver("first", begin), deliver("second", begin.Add(time.Hour))
		begun, goOn, ended := make(chan bool), make(chan bool), make(chan error, 1)
		handleSecond := overlap(func(*message.Message) ([]*message.Message, error) {
			begun <- true
			<-goOn
			return nil, nil
		})
		failed, tries := errors.New("it failed"), 0
		handleFirst := overlap(func(*message.Message) ([]*message.Message, error) {
			tries++
			return nil, failed
		})
		retry := middleware.Retry{MaxRetries: 2, InitialInterval: time.Millisecond, ShouldRetry: func(p middleware.RetryParams) bool {
			switch p.RetryNum {
			case 0:
				require.ErrorIs(t, p.Err, failed)
				go func() { _, err := handleSecond(second); ended <- err }()
				testkit.Wait(t, begun, "the second")
			case 1:
				require.ErrorIs(t, p.Err, errOverlap, "it is postponed, and not acked")
				goOn <- true
				require.NoError(t, testkit.Wait(t, ended, "the end of the second"))
			}
			return true
		}}
		_, err = retry.Middleware(handleFirst)(first)
		require.ErrorIs(t, err, failed)
		require.Equal(t, 2, tries)
		require.Zero(t, log.count("Skipped an occurrence"))
		first.Nack()
		first = testkit.Receive(t, in)
		d, _ := redisdelay.DeliveryFromContext(first.Context())
		require.Equal(t, 2, d.Number, "it counts, and does not wait for an hour")
		first.Ack()
		second.Ack()
	})
}

func TestOverlapConfigIsChecked(t *testing.T) {
	t.Parallel()
	_, err := Overlap(OverlapConfig{KeyPrefix: "{", Policy: "x", Lease: 1, Wait: 1}, nil)
	require.ErrorIs(t, err, ErrInvalidConfig)
	for _, want := range []string{"Client is nil", "KeyPrefix ", `Policy is "x"`, "Lease is 1ns", "Wait is 1ns"} {
		require.ErrorContains(t, err, want)
	}
}

func TestOverlapPostponesWithoutRedis(t *testing.T) {
	testkit.Both(t, func(t *testing.T, s redistest.Server) {
		messages, _, _, _ := overlapping(t, s, OverlapSkip, &capture{})
		unanswered := errors.New("no answer")
		client := redis.NewClient(s.Client.(*redis.Client).Options())
		defer client.Close()
		client.AddHook(redistest.BeforeEach(func(redis.Cmder) error { return unanswered }))
		middleware, err := Overlap(OverlapConfig{Client: client, KeyPrefix: s.Prefix}, nil)
		require.NoError(t, err)
		_, err = middleware(nil)(messages["first"])
		var postponed *redisdelay.PostponeError
		require.ErrorAs(t, err, &postponed)
		require.ErrorIs(t, err, unanswered)
		for _, msg := range messages {
			msg.Ack()
		}
	})
}
