package relay_test

import (
	"context"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/components/delay"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	redisdelay "github.com/redisdelay/watermill-redisdelay"
	"github.com/redisdelay/watermill-redisdelay/internal/test/redistest"
	"github.com/redisdelay/watermill-redisdelay/relay"
)

func newRelayPublisher(t testing.TB, s redistest.Server, to message.Publisher, mapping relay.TopicFunc) *relay.Publisher {
	t.Helper()
	p, err := relay.NewPublisher(relay.PublisherConfig{Destination: to, Delayed: newPublisher(t, s), DestinationTopic: mapping})
	require.NoError(t, err)
	return p
}

// waysToDelay has all ways to delay a message by an hour.
var waysToDelay = map[string]func(*message.Message){
	"DelayFor":          func(msg *message.Message) { redisdelay.DelayFor(msg, never) },
	"DelayUntil":        func(msg *message.Message) { redisdelay.DelayUntil(msg, time.Now().Add(never)) },
	"delay.Message":     func(msg *message.Message) { delay.Message(msg, delay.For(never)) },
	"delay.WithContext": func(msg *message.Message) { msg.SetContext(delay.WithContext(context.Background(), delay.For(never))) },
}

func TestMessagesWithoutDelayGoStraightThrough(t *testing.T) {
	both(t, func(t *testing.T, s redistest.Server) {
		to := newDestination(nil)
		p := newRelayPublisher(t, s, to, nil)
		none := newMessage("none", 0)
		none.Metadata.Set(redisdelay.DelayKey, "0s")
		over := newMessage("over", 0)
		delay.Message(over, delay.Until(time.Now().Add(-never)))
		handedOn := newMessage("handed on", 0)
		handedOn.Metadata.Set(relay.IDKey, "the ID of a relayed message")
		failed := newMessage("failed before", 0)
		failed.Metadata.Set(delay.DelayedForKey, "1m0s")
		all := []*message.Message{newMessage("first", 0), none, over, failed, handedOn}
		publish(t, p, topic, all...)
		publish(t, p, topic)

		taken := to.await(t, 5)
		require.Equal(t, [][]string{{"first", "none", "over", "failed before", "handed on"}}, to.calls)
		for i, got := range taken {
			require.Equal(t, topic, got.topic)
			require.Equal(t, "payload of "+got.uuid, got.payload)
			want := message.Metadata{"kind": "gift"}
			if i == 3 {
				want[delay.DelayedForKey] = "1m0s"
			}
			require.Equal(t, want, got.metadata)
		}
		require.Equal(t, "0s", none.Metadata.Get(redisdelay.DelayKey), "the caller's message is as it was")
		require.Zero(t, countsOf(t, s, topic))
	})
}

func TestRelayThroughAPublisherKeepsTheID(t *testing.T) {
	both(t, func(t *testing.T, s redistest.Server) {
		drained(t, s)
		publish(t, newPublisher(t, s), topic, newMessage("x", 0))
		to := newDestination(nil)
		run(t, newRelay(t, s, newRelayPublisher(t, s, to, nil)))
		require.Contains(t, to.await(t, 1)[0].metadata, relay.IDKey)
	})
}

func TestMessagesWithDelayGoIntoRedis(t *testing.T) {
	both(t, func(t *testing.T, s redistest.Server) {
		to := newDestination(nil)
		p := newRelayPublisher(t, s, to, nil)
		for name, set := range waysToDelay {
			msg := newMessage(name, 0)
			set(msg)
			publish(t, p, topic, msg)
		}
		publish(t, p, topic, newMessage("direct", 0))
		require.Equal(t, []string{"direct"}, uuids(to.await(t, 1)))
		n := int64(len(waysToDelay))
		require.Equal(t, counts{Bodies: n, Waiting: n}, countsOf(t, s, topic))
	})
}

func TestDestinationTopicComesFromTheFunction(t *testing.T) {
	both(t, func(t *testing.T, s redistest.Server) {
		to := newDestination(nil)
		p := newRelayPublisher(t, s, to, func(topic string, msg *message.Message) string { return topic + "." + msg.UUID[:1] })
		publish(t, p, topic, newMessage("a1", 0), newMessage("a2", 0), newMessage("b", never), newMessage("c", 0))
		require.Equal(t, [][]string{{"a1", "a2"}, {"c"}}, to.calls)
		require.Equal(t, []string{"orders.a", "orders.a", "orders.c"}, []string{to.taken[0].topic, to.taken[1].topic, to.taken[2].topic})
		require.Equal(t, counts{Bodies: 1, Waiting: 1}, countsOf(t, s, topic))
	})
}

func TestBadDelayPublishesNothing(t *testing.T) {
	both(t, func(t *testing.T, s redistest.Server) {
		to := newDestination(nil)
		p := newRelayPublisher(t, s, to, nil)
		odd := newMessage("odd", 0)
		odd.Metadata.Set(redisdelay.DelayKey, "15 minutes")
		err := p.Publish(topic, newMessage("direct", 0), newMessage("delayed", never), odd)
		require.ErrorIs(t, err, redisdelay.ErrInvalidDelay)
		require.ErrorContains(t, err, `metadata delay is "15 minutes"`)
		require.ErrorIs(t, p.Publish(topic, newMessage("direct", 0), nil), redisdelay.ErrNilMessage)
		require.Empty(t, to.taken)
		require.Zero(t, countsOf(t, s, topic))
	})
}

func TestMixedCallFailsInOneHalf(t *testing.T) {
	both(t, func(t *testing.T, s redistest.Server) {
		down := newDestination(func(string, []*message.Message) error { return errDown })
		p := newRelayPublisher(t, s, down, nil)
		err := p.Publish(topic, newMessage("direct", 0), newMessage("delayed", never))
		require.ErrorIs(t, err, relay.ErrPartlyPublished)
		require.ErrorIs(t, err, errDown)
		require.Equal(t, counts{Bodies: 1, Waiting: 1}, countsOf(t, s, topic))

		err = p.Publish(topic, newMessage("direct", 0))
		require.ErrorIs(t, err, errDown)
		require.NotErrorIs(t, err, relay.ErrPartlyPublished, "nothing is published")

		up := newDestination(nil)
		delayed := newPublisher(t, s)
		require.NoError(t, delayed.Close())
		p, err = relay.NewPublisher(relay.PublisherConfig{Destination: up, Delayed: delayed})
		require.NoError(t, err)
		require.ErrorIs(t, p.Publish(topic, newMessage("direct", 0), newMessage("delayed", never)), redisdelay.ErrClosed)
		require.Empty(t, up.taken)
	})
}

func TestCloseClosesBoth(t *testing.T) {
	both(t, func(t *testing.T, s redistest.Server) {
		to := newDestination(nil)
		p := newRelayPublisher(t, s, to, nil)
		require.NoError(t, p.Close())
		require.True(t, to.closed)
		require.ErrorIs(t, p.Publish(topic, newMessage("x", never)), redisdelay.ErrClosed)
	})
}
