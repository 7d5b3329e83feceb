package dashboard

import (
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/require"

	redisdelay "github.com/redisdelay/watermill-redisdelay"
	"github.com/redisdelay/watermill-redisdelay/admin"
	"github.com/redisdelay/watermill-redisdelay/internal/test/testkit"
)

func TestManyWaitingMessagesAreMovedAndCancelled(t *testing.T) {
	on(t, func(t *testing.T, s *site) {
		s.register()
		var all []*message.Message
		for i := range 30 {
			msg := message.NewMessage("", []byte("x"))
			msg.Metadata.Set("kind", []string{"gift", "book"}[i%2])
			redisdelay.DelayFor(msg, time.Hour)
			all = append(all, msg)
		}
		require.NoError(t, testkit.NewPublisher(t, s.Server).Publish(topic, all...))
		due := func(within time.Duration) (n int) {
			now, err := s.admin.Stats(t.Context(), topic)
			require.NoError(t, err)
			page, err := s.admin.List(t.Context(), topic, admin.Query{State: admin.Waiting})
			require.NoError(t, err)
			for _, m := range page.Messages {
				if m.Places[0].At.Before(now.Now.Add(within)) {
					n++
				}
			}
			return n
		}
		b := open(t, s.address+"/messages?state=waiting&t="+topic)
		b.sees("30 messages in this state")
		b.fill("key", "kind")
		b.fill("value", "gift")
		b.click("Filter")
		b.sees("All that match:")
		b.click("Reschedule all…")
		b.sees("Reschedule 15 messages", "metadata kind=gift")
		b.fill("in", "5h")
		b.fill("typed-name", topic)
		b.fill("typed-count", "14")
		b.click("Reschedule 15 messages")
		b.sees("The count that you typed is another one. Nothing was changed.")
		require.Equal(t, 30, due(2*time.Hour))
		b.fill("typed-count", "15")
		b.click("Reschedule 15 messages")
		b.sees("Done: 15 of 15")
		require.Equal(t, 15, due(2*time.Hour))
		require.Equal(t, 30, due(6*time.Hour))

		b.click("Messages")
		b.sees("30 messages in this state")
		b.do(chromedp.Navigate(s.address + "/messages?state=waiting&key=kind&value=gift&t=" + topic))
		b.click("Cancel all…")
		b.sees("Cancel 15 messages", "This cannot be undone.")
		b.fill("typed-name", topic)
		b.fill("typed-count", "15")
		b.click("Cancel 15 messages")
		b.sees("Done: 15 of 15")
		require.Equal(t, 15, due(6*time.Hour))
		require.Equal(t, 15, due(2*time.Hour), "the books are as they were")
		b.click("Audit log")
		b.sees("begins with 15 messages, waiting, metadata kind=gift", "done: 15 messages")
		require.Equal(t, []string{"ann cancel", "ann cancel", "ann reschedule", "ann reschedule"}, s.acts())
	})
}
