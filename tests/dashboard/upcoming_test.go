package dashboard

import (
	"fmt"
	"io"
	"log/slog"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/require"

	redisdelay "github.com/redisdelay/watermill-redisdelay"
	"github.com/redisdelay/watermill-redisdelay/dashboard"
	"github.com/redisdelay/watermill-redisdelay/internal/test/testkit"
	"github.com/redisdelay/watermill-redisdelay/partition"
)

// How many of kind=card fall due tomorrow from 9 to 10?
func TestThePageCountsWhatFallsDueByMetadata(t *testing.T) {
	on(t, func(t *testing.T, s *site) {
		parts, err := partition.Topics("split", 2)
		require.NoError(t, err)
		zone, err := time.LoadLocation(got(open(t, s.address), chromedp.Evaluate[string](`Intl.DateTimeFormat().resolvedOptions().timeZone`)))
		require.NoError(t, err)
		now := time.Now().In(zone)
		nine := time.Date(now.Year(), now.Month(), now.Day()+1, 9, 0, 0, 0, zone)
		for _, topics := range [][]string{{topic}, parts} {
			for i, at := range []time.Duration{-time.Millisecond, 0, 30 * time.Minute, time.Hour - time.Millisecond, time.Hour} {
				for _, kind := range []string{"card", "gift"} {
					msg := message.NewMessage(fmt.Sprint(kind, i), nil)
					msg.Metadata.Set("kind", kind)
					redisdelay.DelayUntil(msg, nine.Add(at))
					require.NoError(t, testkit.NewPublisher(t, s.Server).Publish(topics[i%len(topics)], msg))
				}
			}
		}
		b := open(t, s.address)
		for _, name := range []string{topic, "split"} {
			for _, from := range []string{"tomorrow 9:00", nine.Format("2006-01-02 15:04")} {
				b.do(chromedp.Navigate(s.address + "/topic?t=" + name))
				b.click("Other times, or by metadata")
				b.sees("A time is like")
				b.aligned("form.filter", "label, button")
				b.fill("metadata", "kind=card")
				b.fill("from", from)
				b.fill("width", "1h")
				b.fill("intervals", "1")
				b.click("Count")
				b.sees("3 waiting, 0 retrying with kind=card.")
			}
		}
	})
}

// The page shows times with their zone: the browser's, or UTC if it is set so.
func TestTimesHaveTheirZone(t *testing.T) {
	on(t, func(t *testing.T, s *site) {
		s.publish(topic, time.Hour, "x")
		page, err := dashboard.New(dashboard.Config{Admin: s.admin, UTC: true, Logger: slog.New(slog.NewTextHandler(io.Discard, nil))})
		require.NoError(t, err)
		server := httptest.NewServer(page)
		t.Cleanup(func() {
			server.Close()
			require.NoError(t, page.Close())
		})
		const query = "/upcoming?t=" + topic + "&from=2099-07-01+09:00&intervals=1"
		b := open(t, s.address+query+"&zone=Europe/Berlin")
		shown := got(b, chromedp.Evaluate[string](`new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "medium" }).format(new Date("2099-07-01T07:00:00Z"))
			+ " " + new Intl.DateTimeFormat(undefined, { timeZoneName: "short" }).formatToParts(new Date("2099-07-01T07:00:00Z")).at(-1).value`))
		b.sees(shown)
		b.close()
		b = open(t, server.URL+query)
		b.sees("Jul 1, 2099, 9:00:00 AM UTC")
	})
}
