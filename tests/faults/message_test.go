package faults

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	redisdelay "github.com/redisdelay/watermill-redisdelay"
	"github.com/redisdelay/watermill-redisdelay/internal/test/faulttest"
	"github.com/redisdelay/watermill-redisdelay/internal/test/redistest"
)

// asItIs marshals the payload alone, as no Unmarshaler of a worker reads it.
type asItIs struct{}

func (asItIs) Marshal(_ string, msg *message.Message) ([]byte, error) { return msg.Payload, nil }

// publishGarbage publishes messages that cannot be unmarshaled.
func publishGarbage(t *testing.T, w *faulttest.World, n int) {
	t.Helper()
	publisher, err := redisdelay.NewPublisher(redisdelay.PublisherConfig{Client: w.Client, Marshaler: asItIs{}}, nil)
	require.NoError(t, err)
	for i := range n {
		text := fmt.Sprint("garbage-", i)
		w.Note(faulttest.Event{Kind: faulttest.Publish, Topic: "t", UUID: text})
		require.NoError(t, publisher.Publish("t", message.NewMessage("", []byte(text))))
		w.Note(faulttest.Event{Kind: faulttest.Published, Topic: "t", UUID: text})
	}
	require.NoError(t, publisher.Close())
}

func TestPoisonMessages(t *testing.T) {
	t.Parallel()
	faulttest.Case(t, "messages that kill their process, hang, cannot be unmarshaled, or are nacked for ever: each is dead in the end, and their neighbours are handled")
	w := faulttest.NewWorld(t, faulttest.At(redistest.Start(t).Addr()))
	publishGarbage(t, w, 5)
	w.Await(w.Start(faulttest.Worker{
		Role: faulttest.Publisher, Name: "publisher", Messages: faulttest.Pick(30, 300), Do: []string{
			faulttest.Ack, faulttest.Nack(9, 0), faulttest.Ack, faulttest.Nack(9, -1), faulttest.Ack, faulttest.Hang,
			faulttest.Ack, faulttest.Ack, faulttest.Nack(9, 20*time.Millisecond), faulttest.Ack, faulttest.Ack, faulttest.Ack,
			faulttest.Ack, faulttest.Ack, faulttest.Die,
		},
	})...)
	var ends []func()
	for i := range 2 {
		ends = append(ends, w.Start(faulttest.Worker{
			Role: faulttest.Consumer, Name: fmt.Sprint("consumer-", i), InFlight: 3, LeaseMS: 200, MaxExtensionMS: 200, MaxDeliveries: 2, BackoffMS: 10,
		})[0].Respawn())
	}
	w.Drain(faulttest.Pick(time.Minute, 15*time.Minute))
	for _, end := range ends {
		end()
	}
	figures := w.Verify(faulttest.Rules{MaxDeliveries: 2, Return: afterDeaths})
	require.Equal(t, 5+faulttest.Pick(30, 300)/15*5, figures.Dead)
}

func TestPayloadsOfTenMegabytes(t *testing.T) {
	t.Parallel()
	faulttest.Case(t, "payloads of 10 MB arrive unchanged where MaxMessageBytes allows them; by default they are refused before anything is sent")
	w := faulttest.NewWorld(t, faulttest.At(redistest.Start(t).Addr()))
	w.Start(faulttest.Worker{Role: faulttest.Consumer, Name: "consumer", InFlight: 2})
	w.Await(w.Start(faulttest.Worker{
		Role: faulttest.Publisher, Name: "publisher", Messages: faulttest.Pick(5, 50), Payload: 10_000_000, DelaysMS: []int{0, 100},
		Do: []string{faulttest.Ack, faulttest.Nack(1, 10*time.Millisecond)},
	})...)
	publisher, err := redisdelay.NewPublisher(redisdelay.PublisherConfig{Client: w.Client}, nil)
	require.NoError(t, err)
	require.ErrorIs(t, publisher.Publish("t", message.NewMessage("too large", make([]byte, 10_000_000))), redisdelay.ErrMessageTooLarge)
	require.NoError(t, publisher.Close())
	w.Verify(faulttest.Rules{Return: soon})
}

func TestSubscriberThatNeverAcks(t *testing.T) {
	t.Parallel()
	faulttest.Case(t, "a subscriber whose handlers never end, beside one that acks: it keeps what it has in hand and no more, until it dies")
	w := faulttest.NewWorld(t, faulttest.At(redistest.Start(t).Addr()))
	stuck := w.Start(faulttest.Worker{Role: faulttest.Consumer, Name: "stuck", Stuck: true, InFlight: 3, LeaseMS: 300})[0]
	w.Await(w.Start(faulttest.Worker{Role: faulttest.Publisher, Name: "first", Messages: 3})...)
	w.Handled(3)
	w.Start(faulttest.Worker{Role: faulttest.Consumer, Name: "other", InFlight: 3})
	messages := faulttest.Pick(100, 2000)
	w.Await(w.Start(faulttest.Worker{Role: faulttest.Publisher, Name: "publisher", Messages: messages, DelaysMS: []int{0, 10}})...)
	w.Handled(3 + messages)
	stuck.Kill()
	figures := w.Verify(faulttest.Rules{Return: byPoll})
	require.Equal(t, 3, figures.Redeliveries)
}

func TestCallersOfPublishGiveUp(t *testing.T) {
	t.Parallel()
	faulttest.Case(t, "contexts of Publish that end at any moment: a call that returns their error has published nothing, one that returns nil has")
	server := redistest.Start(t)
	p := faulttest.NewProxy(t, server.Addr())
	w := faulttest.NewWorld(t, faulttest.At(server.Addr()))
	w.Start(faulttest.Worker{Role: faulttest.Consumer, Name: "consumer", InFlight: 10})
	p.Delay(2 * time.Millisecond) // so that calls queue
	publishers := w.Start(faulttest.Worker{
		Role: faulttest.Publisher, Name: "publisher", Place: p.Place(), Messages: faulttest.Pick(400, 10_000), Callers: 20, CancelCallerMS: 15,
	})
	w.Await(publishers...)
	figures := w.Verify(faulttest.Rules{})
	require.Positive(t, figures.Refused)
	require.Positive(t, figures.Published)
	for _, e := range w.History() {
		require.False(t, e.Kind == faulttest.Failed && !strings.Contains(e.Err, "context"), "%v", e)
	}
}
