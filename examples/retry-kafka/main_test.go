package main

import (
	"context"
	"errors"
	"regexp"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/pubsub/gochannel"
	"github.com/stretchr/testify/require"

	"github.com/redisdelay/watermill-redisdelay/examples/internal/exampletest"
	"github.com/redisdelay/watermill-redisdelay/internal/test/redistest"
)

func TestMain(m *testing.M) { redistest.Main(m) }

func TestFailedOrdersComeBackAndHoldUpNoOther(t *testing.T) {
	exampletest.Succeeds(t, func(t *testing.T, out string) {
		require.Len(t, regexp.MustCompile(`(?m)^[\d.]+s  charge: order 2 fails: the bank is down$`).FindAllString(out, -1), 2, out)
		require.Regexp(t, `(?m)^[\d.]+s  dead: order 5: given up after 3 tries: the bank does not know the card$`, out)
		require.Contains(t, out, "\n7 orders are charged, 1 dead. Tries of order 2: 3, of order 5: 3.\n")
	})
}

func TestInterruptEndsItCleanly(t *testing.T) {
	exampletest.EndsOnInterrupt(t, regexp.MustCompile(`charge: order 2 fails`), func(t *testing.T, out string) {
		require.Regexp(t, `(?m)^\d orders are charged, `, out)
	})
}

// fails is a Publisher that is down.
type fails struct{ message.Publisher }

var errDown = errors.New("is down")

func (fails) Publish(string, ...*message.Message) error { return errDown }

// A message is nacked if it can go neither way, so that the queue keeps it.
func TestMessageStaysInTheQueueIfItCannotWait(t *testing.T) {
	t.Parallel()
	for name, tries := range map[string]int{"Redis is down": 2, "the queue is down": 1} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			queue := gochannel.NewGoChannel(gochannel.Config{Persistent: true}, nil)
			router, err := message.NewRouter(message.RouterConfig{}, nil)
			require.NoError(t, err)
			came := make(chan string, 100)
			handler := router.AddConsumerHandler("charge", topic, queue, func(msg *message.Message) error {
				select {
				case came <- msg.UUID:
				default: // it comes again at once, for as long as the router runs
				}
				return errors.New("the bank is down")
			})
			require.NoError(t, retries{
				topic: topic, dead: deadTopic, tries: tries, first: time.Hour, most: time.Hour, delayed: fails{}, queue: fails{},
			}.addTo(handler))
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
			defer cancel()
			ended := make(chan error, 1)
			go func() { ended <- router.Run(ctx) }()
			<-router.Running()
			require.NoError(t, queue.Publish(topic, message.NewMessage("1", nil)))
			for range 3 {
				require.Equal(t, "1", <-came)
			}
			cancel()
			require.NoError(t, <-ended)
		})
	}
}
