package redisdelay_test

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	redisdelay "github.com/redisdelay/watermill-redisdelay"
	"github.com/redisdelay/watermill-redisdelay/internal/queue"
	"github.com/redisdelay/watermill-redisdelay/internal/servers"
	"github.com/redisdelay/watermill-redisdelay/internal/test/redistest"
	"github.com/redisdelay/watermill-redisdelay/internal/test/testkit"
	"github.com/redisdelay/watermill-redisdelay/partition"
)

func TestConfigurationOfAKeyLimitIsChecked(t *testing.T) {
	t.Parallel()
	for fault, c := range map[string]redisdelay.KeyLimitConfig{
		"AtOnce is 0; it has to be from 1 to 32":  {},
		"AtOnce is 33; it has to be from 1 to 32": {AtOnce: 33},
		"Lease is 999ms; it has to be at least":   {AtOnce: 1, Lease: time.Second - time.Millisecond},
		"Wait is -1s; it has to be from 1ms":      {AtOnce: 1, Wait: -time.Second},
		"Client is nil":                           {AtOnce: 1},
	} {
		if fault != "Client is nil" {
			c.Client = clientOf(t, "127.0.0.1:1")
		}
		_, err := redisdelay.KeyLimit(c, nil)
		require.ErrorIs(t, err, redisdelay.ErrInvalidConfig)
		if fault != "Client is nil" {
			require.ErrorContains(t, err, fault)
		}
	}
}

func keyLimit(t testing.TB, s redistest.Server, change ...func(*redisdelay.KeyLimitConfig)) message.HandlerMiddleware {
	t.Helper()
	config := redisdelay.KeyLimitConfig{Client: s.Client, KeyPrefix: s.Prefix, AtOnce: 2, Lease: time.Second, Wait: 10 * time.Millisecond}
	for _, f := range change {
		f(&config)
	}
	limit, err := redisdelay.KeyLimit(config, nil)
	require.NoError(t, err)
	return limit
}

func keyed(payload, key string) *message.Message {
	msg := text(payload)
	partition.SetKey(msg, key)
	return msg
}

// handling runs a handler with a key limit, as a router does. It tells what begins, and goes on
// when told.
type handling struct {
	begun chan string
	goOn  chan struct{}
	tries chan redisdelay.Delivery // of messages that were postponed
}

func (h *handling) run(t testing.TB, messages <-chan *message.Message, limit message.HandlerMiddleware) {
	handler := limit(func(msg *message.Message) ([]*message.Message, error) {
		h.begun <- string(msg.Payload)
		<-h.goOn
		return nil, nil
	})
	go func() {
		for msg := range messages {
			go func() {
				_, err := handler(msg)
				var postponed *redisdelay.PostponeError
				if errors.As(err, &postponed) {
					d, _ := redisdelay.DeliveryFromContext(msg.Context())
					select {
					case h.tries <- d:
					default:
					}
				}
				if err != nil {
					msg.Nack()
					return
				}
				msg.Ack()
			}()
		}
	}()
}

// Two processes handle two messages with a key at a time, and others pass.
func TestAKeyHasSoManyHandlersAtOnceInAllProcesses(t *testing.T) {
	both(t, func(t *testing.T, s redistest.Server) {
		drained(t, s)
		h := &handling{begun: make(chan string), goOn: make(chan struct{}), tries: make(chan redisdelay.Delivery, 100)}
		many := func(c *redisdelay.SubscriberConfig) { c.MaxInFlight, c.MaxDeliveries = 10, 1 }
		for range 2 {
			h.run(t, subscribe(t, s, "t", many), keyLimit(t, s))
		}
		p := newPublisher(t, s)
		next := func(n int) (names []string) {
			for range n {
				names = append(names, testkit.Wait(t, h.begun, "a handler"))
			}
			return names
		}
		require.NoError(t, p.Publish("t", keyed("a1", "a"), keyed("a2", "a"), keyed("a3", "a"), keyed("a4", "a"), keyed("b", "b"), text("none")))
		began := next(4)
		first := slices.DeleteFunc(slices.Clone(began), func(name string) bool { return name == "b" || name == "none" })
		require.Len(t, first, 2, "of key a, among %q", began)
		require.Subset(t, began, []string{"b", "none"}, "others pass")
		for range 20 {
			require.Equal(t, 1, testkit.Wait(t, h.tries, "a message that is postponed").Number, "it uses up no delivery")
		}
		for range 4 {
			h.goOn <- struct{}{}
		}
		rest := next(2)
		all := append(first, rest...)
		slices.Sort(all)
		require.Equal(t, []string{"a1", "a2", "a3", "a4"}, all)
		h.goOn <- struct{}{}
		h.goOn <- struct{}{}
		testkit.AwaitEmpty(t, s, "t")
	})
}

// A place of a process that died is free again after its Lease.
func TestPlacesOfADeadProcessAreTakenForTheirLease(t *testing.T) {
	both(t, func(t *testing.T, s redistest.Server) {
		drained(t, s)
		h := &handling{begun: make(chan string), goOn: make(chan struct{}), tries: make(chan redisdelay.Delivery, 100)}
		client, err := servers.NewClient(s.Client)
		require.NoError(t, err)
		messages := subscribe(t, s, "t")
		for i, name := range []string{"dead1", "dead2"} {
			place := queue.NewTopic(client, s.Prefix, "t").Places("a", redisdelay.DefaultConsumerGroup, name, 2, time.Second)[i]
			free, err := place.Begin(t.Context(), 0, false)
			require.NoError(t, err)
			require.True(t, free)
		}
		began := time.Now()
		require.NoError(t, newPublisher(t, s).Publish("t", keyed("a", "a")))
		h.run(t, messages, keyLimit(t, s))
		testkit.Wait(t, h.tries, "a message that is postponed")
		require.Equal(t, "a", testkit.Wait(t, h.begun, "the handler"))
		require.Greater(t, time.Since(began), 900*time.Millisecond)
		h.goOn <- struct{}{}
		testkit.AwaitEmpty(t, s, "t")
	})
}

// A handler keeps its place for longer than the Lease.
func TestAHandlerKeepsItsPlace(t *testing.T) {
	both(t, func(t *testing.T, s redistest.Server) {
		drained(t, s)
		h := &handling{begun: make(chan string), goOn: make(chan struct{}), tries: make(chan redisdelay.Delivery)}
		h.run(t, subscribe(t, s, "t", func(c *redisdelay.SubscriberConfig) { c.MaxInFlight = 10 }),
			keyLimit(t, s, func(c *redisdelay.KeyLimitConfig) { c.AtOnce, c.Wait = 1, 100*time.Millisecond }))
		require.NoError(t, newPublisher(t, s).Publish("t", keyed("one", "a"), keyed("two", "a")))
		first := testkit.Wait(t, h.begun, "the handler")
		for range 15 { // a Lease and a half
			select {
			case <-h.tries:
			case other := <-h.begun:
				t.Fatalf("%s begins beside %s", other, first)
			}
		}
		h.goOn <- struct{}{}
		require.NotEqual(t, first, testkit.Wait(t, h.begun, "the other"))
		h.goOn <- struct{}{}
		testkit.AwaitEmpty(t, s, "t")
	})
}

func TestAKeyLimitNeedsADelivery(t *testing.T) {
	both(t, func(t *testing.T, s redistest.Server) {
		_, err := keyLimit(t, s)(func(*message.Message) ([]*message.Message, error) { return nil, nil })(keyed("x", "a"))
		require.ErrorIs(t, err, redisdelay.ErrNotDelivered)
	})
}
