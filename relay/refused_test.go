package relay_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	redisdelay "github.com/redisdelay/watermill-redisdelay"
	"github.com/redisdelay/watermill-redisdelay/internal/test/redistest"
	"github.com/redisdelay/watermill-redisdelay/relay"
)

func TestMessageRefusedForGoodIsDeadWithTheError(t *testing.T) {
	for name, change := range map[string]func(*relay.Config){"in batches": singly, "ordered": ordered} {
		t.Run(name, func(t *testing.T) {
			both(t, func(t *testing.T, s redistest.Server) {
				to := newDestination(func(_ string, messages []*message.Message) error {
					for _, msg := range messages {
						if msg.UUID == "3" {
							return fmt.Errorf("%w: %s", errRefused, msg.UUID)
						}
					}
					return nil
				})
				all, names := numbered(10, 0)
				publish(t, newPublisher(t, s), topic, all...)
				run(t, newRelay(t, s, to, change))
				require.Equal(t, append(names[:3:3], names[4:]...), uuids(to.await(t, 9)))
				eventually(t, func() bool { return countsOf(t, s, topic) == counts{Bodies: 1, Dead: 1} }, "one dead message")
				for _, reason := range reasons(t, s, topic) {
					require.Equal(t, `refused by the destination: publish to destination topic "orders": the message is too large: 3`, reason)
				}
			})
		})
	}
}

// The destination goes down while a refused batch is published one by one. The rest is not tried.
func TestDestinationGoesDownDuringTheSearchForARefusedMessage(t *testing.T) {
	both(t, func(t *testing.T, s redistest.Server) {
		drained(t, s)
		var tried [][]string // one call after the other
		var delivery []int   // of the first message of each
		to := newDestination(func(_ string, messages []*message.Message) error {
			var call []string
			for _, msg := range messages {
				call = append(call, msg.UUID)
			}
			tried = append(tried, call)
			d, _ := redisdelay.DeliveryFromContext(messages[0].Context())
			delivery = append(delivery, d.Number)
			switch len(tried) {
			case 1:
				return errRefused
			case 3:
				return errDown
			}
			return nil
		})
		all, names := numbered(10, 0)
		publish(t, newPublisher(t, s), topic, all...)
		stop := run(t, newRelay(t, s, to, singly, func(c *relay.Config) { c.BatchMessages, c.BatchWait = 10, time.Second }))
		require.ElementsMatch(t, names, uuids(to.await(t, 10)))
		require.NoError(t, stop())
		require.Equal(t, [][]string{names, {"0"}, {"1"}}, tried[:3])
		for i, number := range delivery[3:] {
			require.Equal(t, 2, number, "%v was left for later", tried[3+i])
		}
	})
}

func TestMaxDeliveriesOfAMessageCounts(t *testing.T) {
	both(t, func(t *testing.T, s redistest.Server) {
		to := newDestination(func(string, []*message.Message) error { return errDown })
		run(t, newRelay(t, s, to))
		msg := newMessage("order", 0)
		msg.Metadata.Set(redisdelay.MaxDeliveriesKey, "3")
		publish(t, newPublisher(t, s), topic, msg)
		eventually(t, func() bool { return countsOf(t, s, topic) == counts{Bodies: 1, Dead: 1} }, "it is dead")
		require.Equal(t, 3, to.tries)
		for _, reason := range reasons(t, s, topic) {
			require.Contains(t, reason, "nacked on the last of 3 deliveries")
			require.Contains(t, reason, errDown.Error())
		}
	})
}

// A message that always fails does not delay the others of its batch. This holds even if its error
// is not known to be permanent and all wait equally long.
func TestMessageThatAlwaysFailsDelaysNoOther(t *testing.T) {
	both(t, func(t *testing.T, s redistest.Server) {
		to := newDestination(func(_ string, messages []*message.Message) error {
			for _, msg := range messages {
				if msg.UUID == "3" {
					return errDown
				}
			}
			return nil
		})
		all, names := numbered(10, 0)
		publish(t, newPublisher(t, s), topic, all...)
		together := func(c *relay.Config) { c.BatchMessages, c.BatchWait = 10, 50*time.Millisecond }
		run(t, newRelay(t, s, to, singly, together))
		require.ElementsMatch(t, append(names[:3:3], names[4:]...), uuids(to.await(t, 9)))
	})
}

func TestMessageWithOneDeliveryIsNotDeadByAnothersError(t *testing.T) {
	for name, once := range map[string]struct {
		message func(*message.Message)
		relay   func(*relay.Config)
	}{
		"by its own limit": {func(msg *message.Message) { redisdelay.SetMaxDeliveries(msg, 1) }, singly},
		"by the relay's":   {func(*message.Message) {}, func(c *relay.Config) { c.Subscriber.MaxDeliveries = 1 }},
	} {
		t.Run(name, func(t *testing.T) {
			both(t, func(t *testing.T, s redistest.Server) {
				to := newDestination(func(_ string, messages []*message.Message) error {
					if slices.ContainsFunc(messages, func(msg *message.Message) bool { return msg.UUID == "bad" }) {
						return errDown
					}
					return nil
				})
				good, bad := newMessage("good", 0), newMessage("bad", 0)
				once.message(good)
				publish(t, newPublisher(t, s), topic, good, bad)
				together := func(c *relay.Config) { c.BatchMessages, c.BatchWait = 10, 50*time.Millisecond }
				run(t, newRelay(t, s, to, singly, together, once.relay))
				require.Equal(t, []string{"good"}, uuids(to.await(t, 1)))
			})
		})
	}
}
