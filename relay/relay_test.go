package relay_test

import (
	"context"
	"math"
	"net"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/message/router/middleware"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	redisdelay "github.com/redisdelay/watermill-redisdelay"
	"github.com/redisdelay/watermill-redisdelay/internal/test/redistest"
	"github.com/redisdelay/watermill-redisdelay/internal/test/testkit"
	"github.com/redisdelay/watermill-redisdelay/relay"
)

func TestDueMessagesGoOutAsTheyWere(t *testing.T) {
	both(t, func(t *testing.T, s redistest.Server) {
		drained(t, s)
		to := newDestination(nil)
		run(t, newRelay(t, s, to))
		start := time.Now()
		delays := map[string]time.Duration{"now": 0, "soon": 30 * time.Millisecond, "later": 150 * time.Millisecond}
		for uuid, d := range delays {
			publish(t, newPublisher(t, s), topic, newMessage(uuid, d))
		}
		ids := map[string]bool{}
		for _, got := range to.await(t, 3) {
			require.Equal(t, topic, got.topic)
			require.Equal(t, "payload of "+got.uuid, got.payload)
			require.Len(t, got.metadata[relay.IDKey], 26, "a ULID")
			ids[got.metadata[relay.IDKey]] = true
			require.Equal(t, message.Metadata{"kind": "gift", relay.IDKey: got.metadata[relay.IDKey]}, got.metadata)
			require.GreaterOrEqual(t, got.at.Sub(start), delays[got.uuid], "%s is early", got.uuid)
		}
		require.Len(t, ids, 3)
		eventually(t, func() bool { return countsOf(t, s, topic) == counts{} }, "all is settled")
	})
}

func TestMessageIsKeptUntilTheDestinationHasIt(t *testing.T) {
	both(t, func(t *testing.T, s redistest.Server) {
		drained(t, s)
		arrived, let := make(chan struct{}), make(chan struct{})
		to := newDestination(func(string, []*message.Message) error {
			arrived <- struct{}{}
			<-let
			return nil
		})
		run(t, newRelay(t, s, to))
		publish(t, newPublisher(t, s), topic, newMessage("order", 0))
		wait(t, arrived, "Publish")
		require.Equal(t, counts{Bodies: 1, InHand: 1}, countsOf(t, s, topic))
		close(let)
		to.await(t, 1)
		eventually(t, func() bool { return countsOf(t, s, topic) == counts{} }, "it is settled")
	})
}

func TestDestinationThatIsDownLosesNothing(t *testing.T) {
	both(t, func(t *testing.T, s redistest.Server) {
		drained(t, s)
		var up atomic.Bool
		to := newDestination(func(topic string, _ []*message.Message) error {
			if topic == "orders" && !up.Load() {
				return errDown
			}
			return nil
		})
		stop := run(t, newRelay(t, s, to, func(c *relay.Config) { c.Topics = []string{"orders", "other"} }))
		p := newPublisher(t, s)
		all, names := numbered(250, 0)
		publish(t, p, "orders", all...)
		to.awaitTries(t, 10)
		others, otherNames := numbered(50, 0)
		publish(t, p, "other", others...)
		require.ElementsMatch(t, otherNames, uuids(to.await(t, 50)), "the other topic is not affected")

		// Messages wait for their retry in Redis, not in the relay.
		require.NoError(t, stop())
		eventually(t, func() bool { return countsOf(t, s, "orders").InHand == 0 }, "nothing is in hand")
		require.EqualValues(t, 250, countsOf(t, s, "orders").Bodies)
		up.Store(true)
		run(t, newRelay(t, s, to, func(c *relay.Config) { c.Topics = []string{"orders", "other"} }))
		require.ElementsMatch(t, names, uuids(to.await(t, 300)[50:]))
	})
}

func TestRetriesWaitAsBackoffSays(t *testing.T) {
	both(t, func(t *testing.T, s redistest.Server) {
		drained(t, s)
		var tries atomic.Int32
		to := newDestination(func(string, []*message.Message) error {
			if tries.Add(1) < 4 {
				return errDown
			}
			return nil
		})
		asked := make(chan int, 10)
		run(t, newRelay(t, s, to, func(c *relay.Config) {
			c.Subscriber.Backoff = func(delivery int) time.Duration {
				asked <- delivery
				return time.Duration(delivery) * 10 * time.Millisecond
			}
		}))
		start := time.Now()
		publish(t, newPublisher(t, s), topic, newMessage("order", 0))
		require.GreaterOrEqual(t, to.await(t, 1)[0].at.Sub(start), 60*time.Millisecond)
		require.Equal(t, []int{1, 2, 3}, []int{<-asked, <-asked, <-asked})
	})
}

func TestAvailableMessagesGoTogether(t *testing.T) {
	both(t, func(t *testing.T, s redistest.Server) {
		drained(t, s)
		arrived, let := make(chan struct{}, 1), make(chan struct{})
		to := newDestination(func(string, []*message.Message) error {
			select {
			case arrived <- struct{}{}:
			default:
			}
			<-let
			return nil
		})
		run(t, newRelay(t, s, to, singly, func(c *relay.Config) { c.BatchMessages = 20 }))
		p := newPublisher(t, s)
		publish(t, p, topic, newMessage("first", 0))
		wait(t, arrived, "Publish")
		all, names := numbered(50, 0)
		publish(t, p, topic, all...)
		eventually(t, func() bool { return countsOf(t, s, topic).InHand >= 40 }, "the relay holds as many as it may")
		close(let)
		require.Equal(t, append([]string{"first"}, names...), uuids(to.await(t, 51)), "in order")
		longest := 0
		for _, call := range to.calls {
			longest = max(longest, len(call))
		}
		require.Greater(t, longest, 1, "messages that came meanwhile go together")
		require.LessOrEqual(t, longest, 20)
	})
}

func TestMessagesWaitForOthersToGoWithThem(t *testing.T) {
	both(t, func(t *testing.T, s redistest.Server) {
		drained(t, s)
		to := newDestination(nil)
		run(t, newRelay(t, s, to, singly, func(c *relay.Config) { c.BatchMessages, c.BatchWait = 3, never }))
		p := newPublisher(t, s)
		for _, uuid := range []string{"1", "2", "3"} {
			publish(t, p, topic, newMessage(uuid, 0))
		}
		to.await(t, 3)
		require.Equal(t, [][]string{{"1", "2", "3"}}, to.calls)

		shortly := newDestination(nil)
		run(t, newRelay(t, s, shortly, singly, func(c *relay.Config) {
			c.Topics, c.BatchWait = []string{"other"}, 20*time.Millisecond
		}))
		publish(t, p, "other", newMessage("alone", 0))
		shortly.await(t, 1)
	})
}

// Messages of a crashed process come one at a time, so each would wait.
func TestMessageThatWasDeliveredBeforeDoesNotWaitForOthers(t *testing.T) {
	both(t, func(t *testing.T, s redistest.Server) {
		drained(t, s)
		publish(t, newPublisher(t, s), topic, newMessage("again", 0))
		down := newDestination(func(string, []*message.Message) error { return errDown })
		stop := run(t, newRelay(t, s, down))
		down.awaitTries(t, 1)
		require.NoError(t, stop())
		to := newDestination(nil)
		run(t, newRelay(t, s, to, func(c *relay.Config) { c.BatchWait = never }))
		to.await(t, 1)
	})
}

func TestStopDoesNotWaitForABatch(t *testing.T) {
	both(t, func(t *testing.T, s redistest.Server) {
		drained(t, s)
		to := newDestination(nil)
		stop := run(t, newRelay(t, s, to, singly, func(c *relay.Config) { c.BatchWait = never }))
		publish(t, newPublisher(t, s), topic, newMessage("alone", 0))
		eventually(t, func() bool { return countsOf(t, s, topic).InHand == 1 }, "it is in hand")
		require.NoError(t, stop())
		if len(to.taken) == 0 { // it had not been handed out
			run(t, newRelay(t, s, to))
		}
		to.await(t, 1)
	})
}

func TestBatchIsPublishedByDestinationTopic(t *testing.T) {
	both(t, func(t *testing.T, s redistest.Server) {
		drained(t, s)
		to := newDestination(nil)
		all, _ := numbered(10, 0)
		publish(t, newPublisher(t, s), topic, all...)
		run(t, newRelay(t, s, to, singly, func(c *relay.Config) {
			c.DestinationTopic = func(topic string, msg *message.Message) string {
				return map[bool]string{true: "even", false: "odd"}[msg.UUID[0]%2 == 0] + "-" + topic
			}
		}))
		byTopic := map[string][]string{}
		for _, got := range to.await(t, 10) {
			byTopic[got.topic] = append(byTopic[got.topic], got.uuid)
		}
		require.Equal(t, map[string][]string{"even-orders": {"0", "2", "4", "6", "8"}, "odd-orders": {"1", "3", "5", "7", "9"}}, byTopic)
	})
}

func TestSeveralRelaysPublishEachMessageOnce(t *testing.T) {
	both(t, func(t *testing.T, s redistest.Server) {
		drained(t, s)
		to := newDestination(nil)
		for range 3 {
			run(t, newRelay(t, s, to))
		}
		all, names := numbered(300, 20*time.Millisecond)
		p := newPublisher(t, s)
		publish(t, p, topic, all...)
		require.ElementsMatch(t, names, uuids(to.await(t, 300)))
		eventually(t, func() bool { return countsOf(t, s, topic) == counts{} }, "all is settled")
		to.await(t, 300)
	})
}

func TestRunMayBeCalledAgainAndTwiceAtOnce(t *testing.T) {
	both(t, func(t *testing.T, s redistest.Server) {
		drained(t, s)
		to := newDestination(nil)
		r := newRelay(t, s, to)
		first, second := run(t, r), run(t, r)
		all, names := numbered(50, 0)
		p := newPublisher(t, s)
		publish(t, p, topic, all...)
		require.ElementsMatch(t, names, uuids(to.await(t, 50)))
		require.NoError(t, first())
		publish(t, p, topic, newMessage("to the second", 0))
		to.await(t, 51)
		require.NoError(t, second())
		publish(t, p, topic, newMessage("to the third", 10*time.Millisecond))
		run(t, r)
		to.await(t, 52)

		ended, cancel := context.WithCancel(context.Background())
		cancel()
		require.NoError(t, r.Run(ended))
	})
}

func TestBlockingPublishDoesNotDelayTheEnd(t *testing.T) {
	both(t, func(t *testing.T, s redistest.Server) {
		drained(t, s)
		arrived, let := make(chan string, 2), make(chan struct{})
		t.Cleanup(func() { close(let) })
		blocked := newDestination(func(_ string, messages []*message.Message) error {
			arrived <- messages[0].Metadata.Get(relay.IDKey)
			<-let
			return errDown
		})
		heeding := newDestination(func(_ string, messages []*message.Message) error {
			arrived <- messages[0].Metadata.Get(relay.IDKey)
			<-messages[0].Context().Done()
			return messages[0].Context().Err()
		})
		short := func(c *relay.Config) {
			c.Subscriber.CloseTimeout, c.Subscriber.LeaseDuration = 50*time.Millisecond, 200*time.Millisecond
		}
		ctx, cancel := context.WithCancel(context.Background())
		ended := make(chan error, 1)
		go func() { ended <- newRelay(t, s, blocked, short).Run(ctx) }()
		publish(t, newPublisher(t, s), topic, newMessage("order", 0))
		id := wait(t, arrived, "Publish")
		cancel()
		require.ErrorIs(t, wait(t, ended, "the end of Run"), relay.ErrStuck)

		stop := run(t, newRelay(t, s, heeding, short))
		require.Equal(t, id, wait(t, arrived, "Publish"), "it comes again, with the same ID")
		require.NoError(t, stop(), "it ends with the messages' contexts")
		to := newDestination(nil)
		run(t, newRelay(t, s, to))
		require.Equal(t, id, to.await(t, 1)[0].metadata[relay.IDKey])
	})
}

func TestUnpublishedMessagesAreGivenBackOnStop(t *testing.T) {
	both(t, func(t *testing.T, s redistest.Server) {
		drained(t, s)
		all, names := numbered(50, 0)
		publish(t, newPublisher(t, s), topic, all...)
		called := make(chan string, 50)
		stop := run(t, newRelay(t, s, silent(called), endsSoon, func(c *relay.Config) {
			c.Subscriber.Backoff = func(int) time.Duration { return 2 * time.Second }
			c.Concurrency, c.BatchMessages, c.BatchWait = 1, 5, never
			c.DestinationTopic = func(_ string, msg *message.Message) string { return "of " + msg.UUID }
			c.Permanent = func(error) bool { return true } // which does not count for what a stop has cut off
		}))
		wait(t, called, "Publish")
		require.NoError(t, stop())
		require.Equal(t, counts{Bodies: 50, Ready: 50}, countsOf(t, s, topic), "no message waits for its lease to expire, or for a retry")
		require.Empty(t, called, "the destination is not asked for the rest of the batch")

		to := newDestination(nil)
		run(t, newRelay(t, s, to))
		require.ElementsMatch(t, names, uuids(to.await(t, 50)))
	})
}

// A failure after the Subscriber has ended the contexts counts no delivery.
func TestStopMakesNoMessageDead(t *testing.T) {
	for name, start := range map[string]func(testing.TB, *relay.Relay) func() error{
		"a Run":    run,
		"a router": func(t testing.TB, r *relay.Relay) func() error { return route(t, r) },
	} {
		t.Run(name, func(t *testing.T) {
			both(t, func(t *testing.T, s redistest.Server) {
				drained(t, s)
				msg := newMessage("once", 0)
				redisdelay.SetMaxDeliveries(msg, 1)
				publish(t, newPublisher(t, s), topic, msg)
				called := make(chan string, 1)
				stop := start(t, newRelay(t, s, silent(called), endsSoon))
				wait(t, called, "Publish")
				require.NoError(t, stop())
				require.Equal(t, counts{Bodies: 1, Ready: 1}, countsOf(t, s, topic))
				to := newDestination(nil)
				run(t, newRelay(t, s, to))
				to.await(t, 1)
			})
		})
	}
}

// Within the CloseTimeout, the Subscriber ends the contexts of its messages first. Those of the
// destination end later, by the relay, and before messages are given up.
func TestTheRelaysOwnEndComesAfterThatOfTheMessagesContexts(t *testing.T) {
	for name, start := range map[string]func(testing.TB, *relay.Relay, message.HandlerMiddleware) func() error{
		"a Run":    func(t testing.TB, r *relay.Relay, _ message.HandlerMiddleware) func() error { return run(t, r) },
		"a router": func(t testing.TB, r *relay.Relay, m message.HandlerMiddleware) func() error { return route(t, r, m) },
	} {
		t.Run(name, func(t *testing.T) {
			both(t, func(t *testing.T, s redistest.Server) {
				drained(t, s)
				publish(t, newPublisher(t, s), topic, newMessage("1", 0))
				handled, sent := make(chan context.Context, 1), make(chan context.Context, 1)
				to := newDestination(func(_ string, messages []*message.Message) error {
					ctx := messages[0].Context()
					sent <- ctx
					<-ctx.Done()
					return ctx.Err()
				})
				stop := start(t, newRelay(t, s, to, endsSoon), func(h message.HandlerFunc) message.HandlerFunc {
					return func(msg *message.Message) ([]*message.Message, error) {
						handled <- msg.Context()
						return h(msg)
					}
				})
				destination := wait(t, sent, "Publish")
				began := time.Now()
				stopped := testkit.Begin(stop)
				if name == "a router" {
					ctx := wait(t, handled, "the handler")
					wait(t, ctx.Done(), "the Subscriber's end of the context")
					require.ErrorIs(t, context.Cause(ctx), redisdelay.ErrClosed)
					require.NoError(t, destination.Err(), "the relay's own end comes later")
				}
				wait(t, destination.Done(), "the relay's own end")
				require.GreaterOrEqual(t, time.Since(began), 1500*time.Millisecond, "a quarter of CloseTimeout before it")
				require.EqualError(t, context.Cause(destination), "the relay is stopped: closed")
				require.NoError(t, wait(t, stopped, "the end"))
				require.Equal(t, counts{Bodies: 1, Ready: 1}, countsOf(t, s, topic), "it is given back, and not given up")
				next := newDestination(nil)
				run(t, newRelay(t, s, next))
				next.await(t, 1)
			})
		})
	}
}

// A deadline that a middleware has set is one of the destination's, too.
func TestTheDestinationHasTheDeadlineOfTheMessage(t *testing.T) {
	both(t, func(t *testing.T, s redistest.Server) {
		drained(t, s)
		deadlines := make(chan bool, 1)
		to := newDestination(func(_ string, messages []*message.Message) error {
			_, ok := messages[0].Context().Deadline()
			deadlines <- ok
			return nil
		})
		route(t, newRelay(t, s, to), middleware.Timeout(soon))
		publish(t, newPublisher(t, s), topic, newMessage("1", 0))
		require.True(t, wait(t, deadlines, "Publish"))
	})
}

// After its end, a relay no longer owns the messages that it could not publish.
func TestMessageWhoseLeaseIsLostIsNotPublished(t *testing.T) {
	both(t, func(t *testing.T, s redistest.Server) {
		drained(t, s)
		arrived, let := make(chan struct{}, 1), make(chan struct{})
		late := newDestination(func(string, []*message.Message) error {
			arrived <- struct{}{}
			<-let
			return nil
		})
		change := func(c *relay.Config) {
			c.Concurrency, c.BatchMessages = 1, 2
			c.Subscriber.CloseTimeout, c.Subscriber.LeaseDuration = 50*time.Millisecond, 200*time.Millisecond
		}
		all, names := numbered(6, 0)
		publish(t, newPublisher(t, s), topic, all...)
		ctx, cancel := context.WithCancel(context.Background())
		ended := make(chan error, 1)
		go func() { ended <- newRelay(t, s, late, change).Run(ctx) }()
		wait(t, arrived, "Publish")
		cancel()
		require.ErrorIs(t, wait(t, ended, "the end of Run"), relay.ErrStuck)
		close(let)
		to := newDestination(nil)
		run(t, newRelay(t, s, to))
		require.ElementsMatch(t, names, uuids(to.await(t, 6)))
		late.mu.Lock()
		defer late.mu.Unlock()
		require.Equal(t, 1, late.tries)
	})
}

// nilError is an error whose methods panic if it is nil.
type nilError struct{ text string }

func (e *nilError) Error() string { return e.text }

func TestUsersCodeThatFailsIsAnError(t *testing.T) {
	for name, fail := range map[string]func() error{
		"panic":     func() error { panic("odd") },
		"Goexit":    func() error { runtime.Goexit(); return nil },
		"typed nil": func() error { return (*nilError)(nil) },
	} {
		for mode, change := range map[string]func(*relay.Config){"parallel": func(*relay.Config) {}, "ordered": ordered} {
			t.Run(name+" "+mode, func(t *testing.T) {
				both(t, func(t *testing.T, s redistest.Server) {
					drained(t, s)
					var first, second atomic.Bool
					to := newDestination(func(string, []*message.Message) error {
						if first.CompareAndSwap(false, true) {
							return fail()
						}
						return nil
					})
					run(t, newRelay(t, s, to, change, func(c *relay.Config) {
						c.DestinationTopic = func(topic string, _ *message.Message) string {
							if second.CompareAndSwap(false, true) {
								_ = fail()
							}
							return topic
						}
						c.Permanent = func(error) bool { _ = fail(); return false }
						c.Subscriber.Backoff = func(int) time.Duration { _ = fail(); return 0 }
					}))
					publish(t, newPublisher(t, s), topic, newMessage("order", 0), newMessage("another", 0))
					require.ElementsMatch(t, []string{"order", "another"}, uuids(to.await(t, 2)))
				})
			})
		}
	}
}

func TestAllTopicsAreRelayedIfNoneAreNamed(t *testing.T) {
	both(t, func(t *testing.T, s redistest.Server) {
		drained(t, s)
		to := newDestination(nil)
		p := newPublisher(t, s)
		publish(t, p, "first", newMessage("a", 0))
		run(t, newRelay(t, s, to, func(c *relay.Config) { c.Topics = nil }))
		require.Equal(t, "first", to.await(t, 1)[0].topic)
		publish(t, p, "second", newMessage("b", 10*time.Millisecond))
		publish(t, p, "first", newMessage("c", 10*time.Millisecond))
		to.await(t, 3)
	})
}

func TestRunBeginsBeforeRedis(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	client := redis.NewClient(&redis.Options{Addr: server.Addr(), MaxRetries: -1, DialerRetries: 1})
	t.Cleanup(func() { _ = client.Close() })
	s := redistest.On(t, client, "test")
	for name, topics := range map[string][]string{"named": {topic}, "found": nil} {
		server.Kill()
		to, logged := newDestination(nil), newLog()
		r, err := relay.New(relay.Config{
			Subscriber: redisdelay.SubscriberConfig{Client: client, KeyPrefix: s.Prefix, TakeoverWindow: -1}, Topics: topics, Destination: to,
		}, logged)
		require.NoError(t, err)
		stop := run(t, r)
		wait(t, logged.errors, "the first failure of "+name)
		server.Restart()
		require.Equal(t, map[string]string{"named": "Subscribed", "found": "The registry of topics is read again"}[name], wait(t, logged.infos, "its end"))
		publish(t, newPublisher(t, s), topic, newMessage(name, 0))
		require.Equal(t, name, to.await(t, 1)[0].uuid)
		require.NoError(t, stop())
	}
}

// log is a logger that sends errors and infos to channels.
type log struct {
	watermill.NopLogger
	errors, infos chan string
	fields        watermill.LogFields
}

func newLog() log { return log{errors: make(chan string, 1), infos: make(chan string, 10)} }

func (l log) Info(msg string, _ watermill.LogFields) {
	select {
	case l.infos <- msg:
	default:
	}
}

func (l log) Error(msg string, _ error, _ watermill.LogFields) {
	select {
	case l.errors <- msg:
	default:
	}
}

func (l log) With(fields watermill.LogFields) watermill.LoggerAdapter {
	for field := range fields {
		if _, twice := l.fields[field]; twice {
			go panic("slog would write field " + field + " twice") // out of reach for those who recover
		}
	}
	l.fields = l.fields.Add(fields)
	return l
}

func TestHandlersOnARouter(t *testing.T) {
	for name, change := range map[string]func(*relay.Config){"parallel": singly, "ordered": ordered} {
		t.Run(name, func(t *testing.T) {
			both(t, func(t *testing.T, s redistest.Server) {
				var tries atomic.Int32
				to := newDestination(func(_ string, messages []*message.Message) error {
					switch messages[0].UUID {
					case "3":
						return errRefused
					case "5":
						if tries.Add(1) < 3 {
							return errDown
						}
					}
					return nil
				})
				router, err := message.NewRouter(message.RouterConfig{}, watermill.NopLogger{})
				require.NoError(t, err)
				r := newRelay(t, s, to, change, func(c *relay.Config) { c.Topics = []string{topic, "other"} })
				router.AddMiddleware(func(h message.HandlerFunc) message.HandlerFunc {
					return func(msg *message.Message) ([]*message.Message, error) {
						if name := message.SubscriberNameFromCtx(msg.Context()); name != "redisdelay.Subscriber" {
							t.Errorf("metrics call the Subscriber %q", name)
						}
						return h(msg)
					}
				})
				require.NoError(t, r.AddHandlers(router))
				ended := make(chan error, 1)
				go func() { ended <- router.Run(context.Background()) }()
				wait(t, router.Running(), "the router")
				all, names := numbered(10, 0)
				p := newPublisher(t, s)
				publish(t, p, topic, all...)
				publish(t, p, "other", newMessage("x", 0))

				var came []string
				for _, got := range to.await(t, 10) {
					require.NotEmpty(t, got.metadata[relay.IDKey])
					if got.topic == topic {
						came = append(came, got.uuid)
					}
				}
				want := append(names[:3:3], names[4:]...)
				if name == "ordered" {
					require.Equal(t, want, came)
				} else {
					require.ElementsMatch(t, want, came)
				}
				eventually(t, func() bool { return countsOf(t, s, topic) == counts{Bodies: 1, Dead: 1} }, "one dead message")
				require.NoError(t, router.Close())
				require.NoError(t, wait(t, ended, "the router's end"))
				require.False(t, to.closed)
			})
		})
	}
}

// If Run could not subscribe, it did not wait for the destination.
func TestSilentRedisIsNotReportedAsTheDestination(t *testing.T) {
	t.Parallel()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer listener.Close()
	client := redis.NewClient(&redis.Options{Addr: listener.Addr().String(), MaxRetries: -1})
	defer client.Close()
	r, err := relay.New(relay.Config{
		Subscriber:  redisdelay.SubscriberConfig{Client: client, CloseTimeout: time.Millisecond},
		Destination: newDestination(nil), Topics: []string{topic},
	}, nil)
	require.NoError(t, err)
	running, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- r.Run(running) }()
	for range 2 { // one is for wake-ups
		asked, err := listener.Accept()
		require.NoError(t, err)
		defer asked.Close()
		_, err = asked.Read(make([]byte, 1))
		require.NoError(t, err)
	}
	stop()
	err = wait(t, ended, "the end of the Run")
	require.ErrorContains(t, err, "Redis does not answer")
	require.NotErrorIs(t, err, relay.ErrStuck)
}

func TestRedisThatHangsAtTheEndIsNotReportedAsTheDestination(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	client := redis.NewClient(&redis.Options{Addr: server.Addr(), ReadTimeout: soon})
	t.Cleanup(func() { _ = client.Close() })
	to := newDestination(nil)
	r, err := relay.New(relay.Config{
		Subscriber:  redisdelay.SubscriberConfig{Client: client, CloseTimeout: time.Second},
		Destination: to, Topics: []string{topic},
	}, nil)
	require.NoError(t, err)
	running, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- r.Run(running) }()
	eventually(t, func() bool { return r.Ready() == nil }, "it is subscribed")
	server.Pause()
	defer server.Resume()
	stop()
	err = wait(t, ended, "the end of the Run")
	require.ErrorContains(t, err, "Redis does not answer")
	require.NotErrorIs(t, err, relay.ErrStuck)
}

func TestConfigurationIsCheckedWhole(t *testing.T) {
	t.Parallel()
	_, err := relay.New(relay.Config{
		Subscriber: redisdelay.SubscriberConfig{MaxInFlight: 3, Broadcast: true, LeaseDuration: time.Millisecond},
		Topics:     []string{"fine", ""},
		Ordered:    true, Concurrency: 2, BatchMessages: 2, BatchWait: -1,
	}, nil)
	require.ErrorIs(t, err, redisdelay.ErrInvalidConfig)
	for _, field := range []string{
		"Destination", "Subscriber.MaxInFlight", "Subscriber.Broadcast", "Topics[1]", "Concurrency", "BatchMessages", "BatchWait",
		"Client", "LeaseDuration",
	} {
		require.ErrorContains(t, err, field)
	}
	_, err = relay.NewPublisher(relay.PublisherConfig{})
	require.ErrorIs(t, err, redisdelay.ErrInvalidConfig)
	require.ErrorContains(t, err, "Destination")
	require.ErrorContains(t, err, "Delayed")

	_, client := redistest.Embedded(t)
	streams, err := redisdelay.NewPublisher(redisdelay.PublisherConfig{
		Client: client, Stream: &redisdelay.StreamConfig{DisableScheduler: true},
	}, nil)
	require.NoError(t, err)
	_, err = relay.NewPublisher(relay.PublisherConfig{Destination: newDestination(nil), Delayed: streams})
	require.ErrorIs(t, err, redisdelay.ErrInvalidConfig)
	require.ErrorContains(t, err, "Delayed has a Stream")
	require.NoError(t, streams.Close())
	_, err = relay.New(relay.Config{
		Subscriber: redisdelay.SubscriberConfig{Client: client}, Destination: newDestination(nil), Topics: []string{"a", "b", "a"},
	}, nil)
	require.ErrorContains(t, err, `Topics[2] is "a" again`)
	_, err = relay.New(relay.Config{
		Subscriber: redisdelay.SubscriberConfig{Client: client}, Destination: newDestination(nil), Topics: []string{},
	}, nil)
	require.ErrorContains(t, err, "Topics is empty")
	_, err = relay.New(relay.Config{
		Subscriber: redisdelay.SubscriberConfig{Client: client}, Destination: newDestination(nil), Concurrency: 10_001, BatchMessages: math.MaxInt,
	}, nil)
	require.ErrorContains(t, err, "Concurrency is 10001; it may be 10000 at most")
	require.ErrorContains(t, err, "BatchMessages is")
	r, err := relay.New(relay.Config{Subscriber: redisdelay.SubscriberConfig{Client: client}, Destination: newDestination(nil)}, nil)
	require.NoError(t, err)
	router, err := message.NewRouter(message.RouterConfig{}, watermill.NopLogger{})
	require.NoError(t, err)
	require.ErrorIs(t, r.AddHandlers(router), redisdelay.ErrInvalidConfig)
}
