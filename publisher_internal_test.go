package redisdelay

import (
	"context"
	"errors"
	"net"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill/components/delay"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/redisdelay/watermill-redisdelay/internal/publish"
	"github.com/redisdelay/watermill-redisdelay/internal/queue"
)

// slowMarshaler takes a second for a message.
type slowMarshaler struct{ BinaryMarshaler }

func (m slowMarshaler) Marshal(topic string, msg *message.Message) ([]byte, error) {
	time.Sleep(time.Second)
	return m.BinaryMarshaler.Marshal(topic, msg)
}

// The rest of Watermill's duration is counted by the publisher's clock, from one time for all
// messages of a call.
func TestMessagesOfACallArePreparedAtOneTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &Publisher{config: PublisherConfig{Marshaler: slowMarshaler{}, MaxPublishMessages: 2, MaxPublishBytes: 1000, MaxMessageBytes: 1000}, engine: publish.NewEngine(publish.Config{})}
		until := time.Now().Add(time.Hour).UTC().Format(time.RFC3339)
		var messages []*message.Message
		for range 2 {
			msg := message.NewMessage("uuid", nil)
			msg.Metadata = message.Metadata{delay.DelayedUntilKey: until, delay.DelayedForKey: "2h"}
			messages = append(messages, msg)
		}
		b := p.engine.NewBatch(2)
		require.NoError(t, p.fill(b, "t", messages))
		require.Equal(t, queue.In(time.Hour+time.Second), b.Messages[0].Due)
		require.Equal(t, b.Messages[0].Due, b.Messages[1].Due)
	})
}

// A call with a Marshaler of this package puts neither its slice of messages nor a closure on the
// heap. With the race detector sync.Pool loses batches at random, so a little is allowed.
func TestPreparingACallAllocatesNothingForTheCall(t *testing.T) {
	p := &Publisher{config: PublisherConfig{Marshaler: BinaryMarshaler{}, MaxPublishMessages: 2, MaxPublishBytes: 1000, MaxMessageBytes: 1000}, engine: publish.NewEngine(publish.Config{})}
	msg := message.NewMessage("uuid", []byte("not paid"))
	publishOne := func(messages ...*message.Message) {
		b, err := p.prepare("t", messages, false)
		if err != nil {
			t.Error(err)
			return
		}
		p.engine.Free(b)
	}
	require.Less(t, testing.AllocsPerRun(1000, func() { publishOne(msg) }), 2.0)
}

// unreachable is a client's hook, for bubbles, for a server that does not answer within a
// millisecond.
type unreachable struct{}

func (unreachable) DialHook(next redis.DialHook) redis.DialHook {
	return func(context.Context, string, string) (net.Conn, error) { return nil, errUnreachable }
}

func (unreachable) ProcessHook(redis.ProcessHook) redis.ProcessHook {
	return func(_ context.Context, cmd redis.Cmder) error {
		time.Sleep(time.Millisecond)
		cmd.SetErr(errUnreachable)
		return errUnreachable
	}
}

func (unreachable) ProcessPipelineHook(redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(_ context.Context, cmds []redis.Cmder) error {
		time.Sleep(time.Millisecond)
		for _, cmd := range cmds {
			cmd.SetErr(errUnreachable)
		}
		return errUnreachable
	}
}

var errUnreachable = errors.New("unreachable")

// Users' tests may run in bubbles, with clients that do not need a network: one Publisher has
// nothing of another's, and waits for nothing that does not happen while the clock stands still.
func TestPublishersInBubbles(t *testing.T) {
	publish := func(t *testing.T) {
		client := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1"})
		defer client.Close()
		client.AddHook(unreachable{})
		p, err := NewPublisher(PublisherConfig{Client: client}, nil)
		require.NoError(t, err)
		var callers sync.WaitGroup
		for caller := range 8 {
			callers.Go(func() {
				for range 20 + caller {
					if err := p.Publish("t", message.NewMessage("x", nil)); !errors.Is(err, errUnreachable) {
						t.Errorf("Publish returned %v", err)
					}
				}
			})
		}
		callers.Wait()
		require.NoError(t, p.Close())
	}
	for range 3 {
		synctest.Test(t, publish)
	}
}
