package tests

import (
	"context"
	"errors"
	"fmt"
	"syscall"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/message/router/plugin"
	"github.com/ThreeDotsLabs/watermill/message/subscriber"
	"github.com/stretchr/testify/require"

	redisdelay "github.com/redisdelay/watermill-redisdelay"
	"github.com/redisdelay/watermill-redisdelay/internal/test/redistest"
)

func init() { children["signalled worker"] = signalledChild }

// signalledChild runs a router that closes at a signal. Its handler has not done before it does.
func signalledChild() int {
	router, err := message.NewRouter(message.RouterConfig{}, watermill.NopLogger{})
	orDie(err)
	router.AddPlugin(plugin.SignalsHandler)
	sub := childSubscriber(func(*redisdelay.SubscriberConfig) {})
	router.AddConsumerHandler("work", topic, sub, func(msg *message.Message) error {
		fmt.Println("begun", msg.UUID)
		for !errors.Is(sub.SubscribeInitialize(topic), redisdelay.ErrClosed) {
			time.Sleep(time.Millisecond)
		}
		fmt.Println("done", msg.UUID)
		return msg.Context().Err()
	})
	orDie(router.Run(context.Background()))
	fmt.Println("ended")
	return 0
}

// At a signal the handler finishes, and its ack counts. What was not handed out is another's at
// once, uncounted.
func TestSignalsHandlerEndsAWorkerCleanly(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	client := server.Client(t)
	expectDrained(t, on(t, client))
	worker := startChild(t, server, "signalled worker")
	worker.awaitSubscribed()
	publisher := newPublisher(t, on(t, client))
	require.NoError(t, publisher.Publish(topic, newMessage("in hand", 0), newMessage("waiting", 0)))
	require.Equal(t, "begun in hand", worker.line())
	require.NoError(t, worker.cmd.Process.Signal(syscall.SIGTERM))
	require.Equal(t, []string{"done in hand", "ended"}, worker.rest())
	require.NoError(t, worker.cmd.Wait())

	msg, delivery := receive(t, subscribe(t, on(t, client)))
	require.Equal(t, "waiting", msg.UUID)
	require.Equal(t, 1, delivery.Number)
	require.False(t, delivery.Redelivered)
	msg.Ack()
}

// BulkRead acks what it reads, each when it is due.
func TestBulkRead(t *testing.T) {
	t.Parallel()
	redistest.Real(t, func(t *testing.T, s redistest.Server) {
		expectDrained(t, s)
		messages := subscribe(t, s)
		publisher := newPublisher(t, s)
		require.NoError(t, publisher.Publish(topic,
			newMessage("third", 200*time.Millisecond), newMessage("second", 100*time.Millisecond), newMessage("first", 0)))
		read, all := subscriber.BulkRead(messages, 3, patience)
		require.True(t, all)
		require.Equal(t, []string{"first", "second", "third"}, read.IDs())
		read, all = subscriber.BulkRead(messages, 1, 50*time.Millisecond)
		require.False(t, all)
		require.Empty(t, read)
	})
}
