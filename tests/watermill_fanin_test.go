package tests

import (
	"strconv"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/components/fanin"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	redisdelay "github.com/redisdelay/watermill-redisdelay"
	"github.com/redisdelay/watermill-redisdelay/internal/test/redistest"
)

// Fan-in brings the messages of several topics to one, each when it is due, none twice, and with
// all that it carries.
func TestFanIn(t *testing.T) {
	t.Parallel()
	redistest.Real(t, func(t *testing.T, s redistest.Server) {
		expectDrained(t, s)
		const each = 20
		sources := []string{"cards", "invoices", "vouchers"}
		in, err := fanin.NewFanIn(newSubscriber(t, s), newPublisher(t, s), fanin.Config{
			SourceTopics: sources, TargetTopic: topic, CloseTimeout: patience,
		}, watermill.NopLogger{})
		require.NoError(t, err)
		start(t, in)
		target := newReceipts()
		target.ackAll(subscribe(t, s))

		publisher := newPublisher(t, s)
		earliest := map[string]time.Time{}
		for i := range each {
			for _, source := range sources {
				msg := message.NewMessage(source+strconv.Itoa(i), nil)
				wait := time.Duration(i) * 20 * time.Millisecond
				earliest[msg.UUID] = time.Now().Add(wait).Truncate(time.Millisecond)
				redisdelay.DelayFor(msg, wait)
				require.NoError(t, publisher.Publish(source, msg))
			}
		}
		for uuid, r := range target.await(t, each*len(sources)) {
			require.False(t, r.at.Before(earliest[uuid]), "%s came early", uuid)
			require.Less(t, r.at.Sub(earliest[uuid]), 2*prompt, "%s came late", uuid)
		}
	})
}

// A delay counts once, at the source.
func TestFanInDelaysOnce(t *testing.T) {
	t.Parallel()
	for name, set := range waysToDelay {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			onHandMoved(t, func(t *testing.T, s handMovedServer) {
				expectDrained(t, s.Server)
				in, err := fanin.NewFanIn(newSubscriber(t, s.Server, ofLongLease), newPublisher(t, s.Server), fanin.Config{
					SourceTopics: []string{"cards"}, TargetTopic: topic,
				}, watermill.NopLogger{})
				require.NoError(t, err)
				start(t, in)
				messages := subscribe(t, s.Server, ofLongLease)
				due := serverTime(t, s.Client).Add(time.Hour)
				order := message.NewMessage("order", nil)
				order.Metadata.Set("kind", "gift")
				set(order, time.Hour)
				publisher := newPublisher(t, s.Server)
				require.NoError(t, publisher.Publish("cards", order))
				s.nothingYet(t, publisher, "cards", messages)
				s.advance(t, time.Hour)
				msg, delivery := s.receiveAtOnce(t, messages)
				requireBetween(t, delivery.DueAt, due, serverTime(t, s.Client))
				require.Equal(t, message.Metadata{"kind": "gift"}, msg.Metadata)
				msg.Ack()
			})
		})
	}
}
