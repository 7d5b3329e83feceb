package dashboard

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/require"

	redisdelay "github.com/redisdelay/watermill-redisdelay"
	"github.com/redisdelay/watermill-redisdelay/admin"
	"github.com/redisdelay/watermill-redisdelay/internal/test/testkit"
)

// A list that stops at a size says so, and how much there is.
func TestAListThatStopsSaysSo(t *testing.T) {
	on(t, func(t *testing.T, s *site) {
		for i := range 201 {
			sub := testkit.NewSubscriber(t, s.Server, func(c *redisdelay.SubscriberConfig) {
				c.ConsumerGroup, c.HistoryRetention = fmt.Sprintf("group-%03d", i), time.Hour
			})
			if i == 0 {
				messages := testkit.SubscribeTo(t, sub, topic)
				go func() {
					for msg := range messages {
						redisdelay.DeadOnNack(msg, errors.New("the customer is unknown"))
						msg.Nack()
					}
				}()
				continue
			}
			require.NoError(t, sub.SubscribeInitialize(topic))
		}
		for range 3 {
			testkit.SubscribeTo(t, testkit.NewSubscriber(t, s.Server, func(c *redisdelay.SubscriberConfig) { c.ConsumerGroup = "group-200" }), topic)
		}
		s.publish(topic, 0, make([]string, 120)...)
		var later []*message.Message
		for i := range 60 {
			msg := message.NewMessage(watermill.NewUUID(), nil)
			redisdelay.SetDelayID(msg, fmt.Sprint("order ", i), redisdelay.DelayIDReplace)
			redisdelay.DelayFor(msg, time.Hour)
			later = append(later, msg)
			require.NoError(t, s.admin.Record(ctx, admin.Act{By: "ann", Action: "pause", Topic: topic}))
		}
		require.NoError(t, testkit.NewPublisher(t, s.Server).Publish(topic, later...))
		for i := range 55 {
			require.NoError(t, s.admin.Cancel(ctx, topic, admin.ByDelayID(fmt.Sprint("order ", i))))
			s.publish(fmt.Sprint("topic ", i), time.Hour, "x")
		}
		require.Eventually(t, func() bool {
			stats, err := s.admin.Stats(ctx, topic)
			return err == nil && stats.Groups[0].Dead == 120
		}, patience, 5*time.Millisecond)
		for address, said := range map[string]string{
			"/":                 "Page 1 of 2, with 50 of 56 topics",
			"/topic?t=" + topic: "The first 200 of 201 groups. The tool has all: redisdelay groups ls " + topic,
			"/audit":            "The newest 50 changes. There are older ones.",
			"/ended?t=" + topic: "The newest 50. There are older ones.",
			"/messages?t=" + topic + "&g=group-000&state=dead": "120 messages in this state. This page has 50 of them.",
		} {
			b := open(t, s.address)
			b.do(chromedp.Navigate(s.address + address))
			b.sees(said)
			b.close()
		}
	})
}
