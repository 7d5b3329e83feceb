package redisdelay_test

import (
	"context"
	"errors"
	"io"
	"net"
	"slices"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	redisdelay "github.com/redisdelay/watermill-redisdelay"
	"github.com/redisdelay/watermill-redisdelay/internal/queue"
	"github.com/redisdelay/watermill-redisdelay/internal/test/redistest"
)

// The fate of a Publish whose context ends depends on where it is: while it waits in the line it is
// taken back, and nowhere else. Here is a test for each place, in the order of the way.

// within is a message whose context ends when end is called.
func within(payload string) (msg *message.Message, end func()) {
	limited, cancel := context.WithCancel(ctx)
	return message.NewMessageWithContext(limited, payload, []byte(payload)), cancel
}

// onItsWay is a publisher that has published before, whose calls to Redis are held from now on.
// Each is let go by a value to opened, all by open.
func onItsWay(t *testing.T, s redistest.Server, matches string, change ...func(*redisdelay.PublisherConfig)) (p *redisdelay.Publisher, calls *hook) {
	t.Helper()
	client := another(t, s)
	p = newPublisher(t, s, append(change, func(c *redisdelay.PublisherConfig) { c.Client = client })...)
	publish(t, p, "t", "before") // so that what is asked once was asked
	return p, hold(t, client, matches)
}

// come requires that these messages are delivered, each once, and no other.
func come(t *testing.T, s redistest.Server, payloads ...string) {
	t.Helper()
	require.EqualValues(t, len(payloads), stateOf(t, s, "t").Bodies)
	requireSame(t, payloads, consume(t, subscribe(t, s, "t"), len(payloads)))
	eventually(t, func() bool { return stateOf(t, s, "t").Bodies == 0 }, "all are acked")
}

func TestContextThatHasEndedBeforePublish(t *testing.T) {
	both(t, func(t *testing.T, s redistest.Server) {
		client := another(t, s)
		calls := counter(client, "t")
		p := newPublisher(t, s, func(c *redisdelay.PublisherConfig) { c.Client = client })
		late, cancel := context.WithDeadline(ctx, time.Now())
		defer cancel()
		first, end := within("first")
		end()
		require.ErrorIs(t, p.Publish("t", first), context.Canceled)
		require.ErrorIs(t, p.Publish("t", text("second"), message.NewMessageWithContext(late, "", nil)), context.DeadlineExceeded)
		require.Zero(t, calls.calls(), "Redis was asked")
		require.Zero(t, stateOf(t, s, "t").Bodies)
	})
}

// endingMarshaler ends a context in the middle of Publish.
type endingMarshaler struct {
	redisdelay.BinaryMarshaler
	end func()
}

func (m endingMarshaler) Marshal(topic string, msg *message.Message) ([]byte, error) {
	m.end()
	return m.BinaryMarshaler.Marshal(topic, msg)
}

func TestContextThatEndsWhileNoOtherCallWaits(t *testing.T) {
	both(t, func(t *testing.T, s redistest.Server) {
		drained(t, s)
		msg, end := within("goes at once")
		p := newPublisher(t, s, func(c *redisdelay.PublisherConfig) { c.Marshaler = endingMarshaler{end: end} })
		require.NoError(t, p.Publish("t", msg))
		come(t, s, "goes at once")
	})
}

func TestContextThatEndsInTheLine(t *testing.T) {
	both(t, func(t *testing.T, s redistest.Server) {
		drained(t, s)
		p, calls := onItsWay(t, s, ":publisher:")
		first := begin(func() error { return p.Publish("t", text("first")) })
		wait(t, calls.arrived, "the first call")
		msg, end := within("taken back")
		second := queued(t, func() error { return p.Publish("t", msg, text("with it")) })
		end()
		require.ErrorIs(t, wait(t, second, "the second, while the first is held"), context.Canceled)
		calls.open()
		require.NoError(t, wait(t, first, "the first"))
		come(t, s, "before", "first")
	})
}

// Of the messages of a call, the first one's context counts while it waits.
func TestContextOfAnotherMessageThatEndsInTheLine(t *testing.T) {
	both(t, func(t *testing.T, s redistest.Server) {
		drained(t, s)
		p, calls := onItsWay(t, s, ":publisher:")
		first := begin(func() error { return p.Publish("t", text("first")) })
		wait(t, calls.arrived, "the first call")
		msg, end := within("with it")
		second := queued(t, func() error { return p.Publish("t", text("second"), msg) })
		end()
		calls.open()
		require.NoError(t, wait(t, first, "the first"))
		require.NoError(t, wait(t, second, "the second"))
		come(t, s, "before", "first", "second", "with it")
	})
}

// The first of those who wait makes the call for all. From then on neither its context nor
// another's counts.
func TestContextThatEndsBeforeTheCallOfItsBatch(t *testing.T) {
	both(t, func(t *testing.T, s redistest.Server) {
		drained(t, s)
		p, calls := onItsWay(t, s, ":publisher:")
		first := begin(func() error { return p.Publish("t", text("first")) })
		wait(t, calls.arrived, "the first call")
		leads, endLeader := within("leads")
		leader := queued(t, func() error { return p.Publish("t", leads) })
		follows, endFollower := within("follows")
		follower := queued(t, func() error { return p.Publish("t", follows) })
		calls.opened <- struct{}{}
		require.NoError(t, wait(t, first, "the first"))
		wait(t, calls.arrived, "the call for both, which is not sent yet")
		endLeader()
		endFollower()
		require.EqualValues(t, 2, stateOf(t, s, "t").Bodies)
		calls.open()
		require.NoError(t, wait(t, leader, "the leader"))
		require.NoError(t, wait(t, follower, "the other"))
		come(t, s, "before", "first", "leads", "follows")
	})
}

func TestContextThatEndsWhilePermissionsAreAskedFor(t *testing.T) {
	both(t, func(t *testing.T, s redistest.Server) {
		drained(t, s)
		client := another(t, s)
		calls := hold(t, client, queue.ScriptSHA(queue.Scripts()["permit"]))
		p := newPublisher(t, s, func(c *redisdelay.PublisherConfig) { c.Client = client })
		msg, end := within("first")
		result := begin(func() error { return p.Publish("t", msg) })
		wait(t, calls.arrived, "the question")
		end()
		require.Zero(t, stateOf(t, s, "t").Bodies)
		calls.open()
		require.NoError(t, wait(t, result, "Publish"))
		come(t, s, "first")
	})
}

func TestContextThatEndsBeforeTheReply(t *testing.T) {
	for name, lost := range map[string]bool{"which arrives then": false, "which is lost, so that the client asks again": true} {
		t.Run(name, func(t *testing.T) {
			both(t, func(t *testing.T, s redistest.Server) {
				drained(t, s)
				network := newProxy(t, s)
				client := network.client(t)
				p := newPublisher(t, s, func(c *redisdelay.PublisherConfig) { c.Client = client })
				publish(t, p, "t", "before")
				arrived, pass := network.holdReply(t, ":publisher:")
				msg, end := within("done")
				result := begin(func() error { return p.Publish("t", msg) })
				wait(t, arrived, "the reply")
				end()
				require.EqualValues(t, 2, stateOf(t, s, "t").Bodies, "Redis has it")
				select {
				case err := <-result:
					t.Fatalf("Publish has returned without the reply: %v", err)
				default:
				}
				pass(lost)
				require.NoError(t, wait(t, result, "Publish"))
				come(t, s, "before", "done")
			})
		})
	}
}

func TestContextThatEndsWhileReplicasAreWaitedFor(t *testing.T) {
	s, _, replicas := replicated(t, 1)
	client := another(t, s)
	p := newPublisher(t, s, waitingFor(1, never), func(c *redisdelay.PublisherConfig) { c.Client = client })
	publish(t, p, "t", "before")
	asks := hold(t, client, "pexpire")
	replicas[0].Pause()
	msg, end := within("confirmed")
	result := begin(func() error { return p.Publish("t", msg) })
	wait(t, asks.arrived, "the question whether the replica has it")
	end()
	asks.open()
	require.EqualValues(t, 2, stateOf(t, s, "t").Bodies)
	replicas[0].Resume()
	require.NoError(t, wait(t, result, "Publish"))
	require.Equal(t, 2, bodiesOn(t, replicas[0], "t"))
	come(t, s, "before", "confirmed")
}

// The error is that of the replicas, and not the context's, which would say that the message is not
// there.
func TestContextThatEndsWhileReplicasDoNotConfirm(t *testing.T) {
	for name, freeze := range map[string]func(primary, replica *redistest.Instance) *redistest.Instance{
		"as they are frozen":            func(_, replica *redistest.Instance) *redistest.Instance { return replica },
		"as the server does not answer": func(primary, _ *redistest.Instance) *redistest.Instance { return primary },
	} {
		t.Run(name, func(t *testing.T) {
			s, primary, replicas := replicated(t, 1)
			publish(t, newPublisher(t, s, waitingFor(1, never)), "t", "first") // which a new replica confirms late
			client := another(t, s)
			p := newPublisher(t, s, waitingFor(1, time.Second), func(c *redisdelay.PublisherConfig) { c.Client = client })
			publish(t, p, "t", "before")
			asks := hold(t, client, "pexpire")
			msg, end := within("unconfirmed")
			result := begin(func() error { return p.Publish("t", msg) })
			wait(t, asks.arrived, "the question whether the replica has it")
			end()
			frozen := freeze(primary, replicas[0])
			frozen.Pause()
			asks.open()
			err := wait(t, result, "Publish")
			frozen.Resume()
			require.ErrorIs(t, err, redisdelay.ErrNotReplicated)
			require.NotErrorIs(t, err, context.Canceled)
			require.NotErrorIs(t, err, context.DeadlineExceeded)
			come(t, s, "first", "before", "unconfirmed")
		})
	}
}

// Clients have timeouts that are errors of contexts, too. They do not say that nothing is
// published.
func TestTimeoutOfTheClientIsNotTakenForTheCallersContext(t *testing.T) {
	both(t, func(t *testing.T, s redistest.Server) {
		for _, fault := range []error{context.DeadlineExceeded, context.Canceled} {
			client := another(t, s)
			p := newPublisher(t, s, func(c *redisdelay.PublisherConfig) { c.Client = client })
			cause := &net.OpError{Op: "dial", Err: fault}
			failing(client, ":publisher:").fail(cause)
			err := p.Publish("t", text("x"))
			require.ErrorContains(t, err, fault.Error())
			require.NotErrorIs(t, err, fault)
			require.ErrorIs(t, err, cause)
			var op *net.OpError
			require.ErrorAs(t, err, &op)
		}
	})
}

func TestPublishThatCloseGivesUpIsNotTakenForCancelled(t *testing.T) {
	both(t, func(t *testing.T, s redistest.Server) {
		p, calls := onItsWay(t, s, ":publisher:", func(c *redisdelay.PublisherConfig) { c.CloseTimeout = 20 * time.Millisecond })
		result := begin(func() error { return p.Publish("t", text("x")) })
		wait(t, calls.arrived, "the call")
		require.Error(t, p.Close())
		err := wait(t, result, "Publish")
		require.ErrorIs(t, err, redisdelay.ErrClosed)
		require.NotErrorIs(t, err, context.Canceled)
	})
}

func TestContextThatEndsAfterPublish(t *testing.T) {
	both(t, func(t *testing.T, s redistest.Server) {
		drained(t, s)
		p := newPublisher(t, s)
		msg, end := within("there")
		require.NoError(t, p.Publish("t", msg))
		end()
		publish(t, p, "t", "next")
		come(t, s, "there", "next")
	})
}

// PublishContext returns when its context ends, wherever the call is. The tests are in the order of
// the way again.
func TestPublishContextThatHasEnded(t *testing.T) {
	both(t, func(t *testing.T, s redistest.Server) {
		client := another(t, s)
		calls := counter(client, "t")
		p := newPublisher(t, s, func(c *redisdelay.PublisherConfig) { c.Client = client })
		ended, cancel := context.WithCancel(ctx)
		cancel()
		err := p.PublishContext(ended, "t", text("x"))
		require.ErrorIs(t, err, context.Canceled)
		require.NotErrorIs(t, err, redisdelay.ErrMaybePublished)
		var none context.Context
		require.ErrorContains(t, p.PublishContext(none, "t", text("x")), "the context is nil")
		require.Zero(t, calls.calls(), "Redis was asked")
	})
}

func TestPublishContextThatEndsInTheLine(t *testing.T) {
	both(t, func(t *testing.T, s redistest.Server) {
		drained(t, s)
		p, calls := onItsWay(t, s, ":publisher:")
		first := begin(func() error { return p.PublishContext(ctx, "t", text("first")) })
		wait(t, calls.arrived, "the first call")
		limited, end := context.WithCancel(ctx)
		second := queued(t, func() error { return p.PublishContext(limited, "t", text("taken back")) })
		end()
		err := wait(t, second, "the second, while the first is held")
		require.ErrorIs(t, err, context.Canceled)
		require.NotErrorIs(t, err, redisdelay.ErrMaybePublished)
		calls.open()
		require.NoError(t, wait(t, first, "the first"))
		come(t, s, "before", "first")
	})
}

// The call of a caller that has left goes on, with the messages of others and what it had itself.
func TestPublishContextThatEndsWhileTheCallIsOnItsWay(t *testing.T) {
	both(t, func(t *testing.T, s redistest.Server) {
		drained(t, s)
		p, calls := onItsWay(t, s, ":publisher:")
		limited, end := context.WithCancel(ctx)
		alone := begin(func() error { return p.PublishContext(limited, "t", text("alone")) })
		wait(t, calls.arrived, "the call")
		stays := queued(t, func() error { return p.Publish("t", text("stays")) })
		leaves := queued(t, func() error { return p.PublishContext(limited, "t", text("leaves")) })
		calls.opened <- struct{}{}
		require.NoError(t, wait(t, alone, "the first"))
		wait(t, calls.arrived, "the call for both")
		end()
		err := wait(t, leaves, "the one whose context has ended")
		require.ErrorIs(t, err, context.Canceled)
		require.ErrorIs(t, err, redisdelay.ErrMaybePublished)
		closed := begin(p.Close)
		calls.open()
		require.NoError(t, wait(t, stays, "the other"))
		require.NoError(t, wait(t, closed, "Close"))
		come(t, s, "before", "alone", "stays", "leaves")
	})
}

// payloadMarshaler returns the memory of the caller.
type payloadMarshaler struct{}

func (payloadMarshaler) Marshal(_ string, msg *message.Message) ([]byte, error) {
	return msg.Payload, nil
}

func (payloadMarshaler) Unmarshal(_ string, data []byte) (*message.Message, error) {
	return message.NewMessage("", data), nil
}

func TestPublishContextLeavesTheCallerItsMemory(t *testing.T) {
	both(t, func(t *testing.T, s redistest.Server) {
		p, calls := onItsWay(t, s, ":publisher:", func(c *redisdelay.PublisherConfig) { c.Marshaler = payloadMarshaler{} })
		limited, end := context.WithCancel(ctx)
		payload := []byte("as it was")
		result := begin(func() error { return p.PublishContext(limited, "t", message.NewMessage("", payload)) })
		wait(t, calls.arrived, "the call")
		end()
		require.ErrorIs(t, wait(t, result, "PublishContext"), redisdelay.ErrMaybePublished)
		copy(payload, "something")
		calls.open()
		require.NoError(t, p.Close())
		messages := subscribe(t, s, "t", func(c *redisdelay.SubscriberConfig) { c.Unmarshaler = payloadMarshaler{} })
		require.Equal(t, []string{"before", "as it was"}, consume(t, messages, 2))
	})
}

func TestPublishContextOfADeliveredMessageCounts(t *testing.T) {
	both(t, func(t *testing.T, s redistest.Server) {
		p, calls := onItsWay(t, s, ":publisher:")
		delivered := receive(t, subscribe(t, s, "t"))
		limited, end := context.WithCancel(delivered.Context())
		result := begin(func() error { return p.PublishContext(limited, "t", text("x")) })
		wait(t, calls.arrived, "the call")
		end()
		require.ErrorIs(t, wait(t, result, "PublishContext"), context.Canceled)
		calls.open()
		require.True(t, delivered.Ack())
	})
}

// At any moment nil means published, and an error that is not ErrMaybePublished means not.
func TestPublishContextTellsWhatItKnows(t *testing.T) {
	both(t, func(t *testing.T, s redistest.Server) {
		p := newPublisher(t, s)
		var sure, maybe []string
		for payload, err := range hurried(func(limited context.Context, payload string) error {
			return p.PublishContext(limited, "t", text(payload))
		}) {
			if err != nil {
				require.ErrorIs(t, err, context.DeadlineExceeded)
			}
			if err == nil {
				sure = append(sure, payload)
			} else if errors.Is(err, redisdelay.ErrMaybePublished) {
				maybe = append(maybe, payload)
			}
		}
		require.NoError(t, p.Close())
		got := consume(t, subscribe(t, s, "t"), int(stateOf(t, s, "t").Bodies))
		require.Subset(t, got, sure)
		require.Subset(t, append(sure, maybe...), got)
		require.ElementsMatch(t, slices.Compact(slices.Sorted(slices.Values(got))), got, "none came twice")
	})
}

func TestAnErrorTellsWhetherItMayBePublished(t *testing.T) {
	both(t, func(t *testing.T, s redistest.Server) {
		client := another(t, s)
		faults := failing(client, ":publisher:")
		p := newPublisher(t, s, func(c *redisdelay.PublisherConfig) { c.Client = client })
		publish(t, p, "t", "before")
		for _, c := range []struct {
			err   error
			maybe bool
		}{
			{io.ErrUnexpectedEOF, true},
			{context.DeadlineExceeded, true}, // of the client
			{proto("LOADING Redis is loading the dataset in memory"), true},
			{proto("OOM command not allowed when used memory > 'maxmemory'."), false},
			{proto("ERR no"), false},
		} {
			faults.fail(c.err)
			err := p.Publish("t", text("x"))
			require.Error(t, err)
			require.Equal(t, c.maybe, errors.Is(err, redisdelay.ErrMaybePublished), "%v", err)
			require.NotErrorIs(t, err, context.DeadlineExceeded)
		}
	})
}

// proto is an error of a server.
type proto string

func (e proto) Error() string { return string(e) }
func (proto) RedisError()     {}
