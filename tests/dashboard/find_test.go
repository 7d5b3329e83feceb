package dashboard

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
	"github.com/stretchr/testify/require"

	redisdelay "github.com/redisdelay/watermill-redisdelay"
	"github.com/redisdelay/watermill-redisdelay/admin"
	"github.com/redisdelay/watermill-redisdelay/dashboard"
	"github.com/redisdelay/watermill-redisdelay/internal/test/redistest"
	"github.com/redisdelay/watermill-redisdelay/internal/test/testkit"
	"github.com/redisdelay/watermill-redisdelay/partition"
)

// The reminder of order 4711 never came: it is found from any page, in any state, in a plain topic
// and in a partition.
func TestALostReminderIsFound(t *testing.T) {
	on(t, func(t *testing.T, s *site) {
		parts, err := partition.Topics("invoices", 2)
		require.NoError(t, err)
		sub := testkit.NewSubscriber(t, s.Server, func(c *redisdelay.SubscriberConfig) {
			c.ConsumerGroup, c.MaxInFlight, c.LeaseDuration = "mails", 10, time.Hour
		})
		reminders := testkit.SubscribeTo(t, sub, "reminders")
		publish := func(topic, state, metadata string, d time.Duration) {
			msg := message.NewMessage("uuid of "+state, fmt.Appendf(nil, `{"order": 4711, "is": %q, "password": "geheim"}`, state))
			msg.Metadata.Set("kind", metadata)
			redisdelay.DelayFor(msg, d)
			require.NoError(t, testkit.NewPublisher(t, s.Server).Publish(topic, msg))
		}
		publish(parts[1], "waiting", "invoice", time.Hour)
		publish("reminders", "dead", "reminder", 0)
		dead := testkit.Receive(t, reminders)
		redisdelay.DeadOnNack(dead, fmt.Errorf("the mail server is down"))
		dead.Nack()
		publish("reminders", "retrying", "reminder", 0)
		retrying := testkit.Receive(t, reminders)
		redisdelay.DelayFor(retrying, time.Hour)
		retrying.Nack()
		publish("reminders", "in hand", "reminder", 0)
		testkit.Receive(t, reminders)
		require.Eventually(t, func() bool {
			stats, err := s.admin.Stats(ctx, "reminders")
			return err == nil && stats.Groups[0].Dead == 1 && stats.Groups[0].Retrying == 1 && stats.Groups[0].InHand == 1
		}, patience, 5*time.Millisecond)
		_, err = s.admin.Pause(ctx, "reminders", admin.PauseOptions{})
		require.NoError(t, err)
		publish("reminders", "ready", "reminder", 0)

		b := open(t, s.address)
		b.click("Find")
		b.search("4711")
		b.sees("Waiting", "Ready in mails", "In hand in mails", "Retrying in mails", "Dead in mails", "the mail server is down", parts[1],
			"Looked at 5 messages in 2 topics, in all groups: 1 waiting, 1 ready, 1 in hand, 1 retrying, 1 dead.")
		require.NotContains(t, b.text(), "geheim")
		b.choose("by", "Metadata, key=value")
		b.search("kind=invoice")
		b.sees("Looked at 5 messages", parts[1])
		require.NotContains(t, b.text(), "in mails")
		for _, state := range []string{"waiting", "ready", "in hand", "retrying", "dead"} {
			b.choose("by", "Text in the payload")
			b.search(`"is": "` + state)
			b.sees("Looked at 5 messages", strings.ToUpper(state[:1])+state[1:])
			require.Equal(t, 1, b.rows(), state)
		}
		b.choose("by", "Any of these")
		b.search("geheim") // what is hidden is not found
		b.sees("Nothing was found.", "it was acked, dropped as too late")

		// From the page of a topic, by the ID of what was found.
		found, err := s.admin.Find(ctx, admin.Search{Filter: admin.Filter{UUID: "uuid of dead"}})
		require.NoError(t, err)
		b.do(chromedp.Navigate(s.address + "/topic?t=reminders"))
		b.click("Find a message")
		b.aligned("details[open] form", "label, button")
		b.search(found.Messages[0].ID)
		b.sees("Looks in topic reminders", "Looked up the ID in 1 topic.", "Dead in mails")
		require.Equal(t, 1, b.rows())
		b.click(found.Messages[0].ID)
		b.sees("Dead letter", "the mail server is down")
	})
}

// The end of order 4711 is found from its delay ID, in a plain topic and in a partition.
func TestAMessageThatEndedIsFound(t *testing.T) {
	on(t, func(t *testing.T, s *site) {
		parts, err := partition.Topics("invoices", 2)
		require.NoError(t, err)
		b := open(t, s.address)
		for named, topics := range map[string][]string{"reminders": {"reminders"}, "invoices": parts} {
			topic, name := topics[len(topics)-1], "order 4711 of "+named
			for _, plain := range topics {
				messages := testkit.SubscribeTo(t, testkit.NewSubscriber(t, s.Server, func(c *redisdelay.SubscriberConfig) { c.ConsumerGroup = "mails" }), plain)
				go func() {
					for msg := range messages {
						msg.Ack()
					}
				}()
			}
			_, err := s.admin.SetHistory(ctx, named, "mails", admin.History{Retention: time.Hour})
			require.NoError(t, err)
			msg := message.NewMessage("uuid of "+named, nil)
			redisdelay.SetDelayID(msg, name, redisdelay.DelayIDReplace)
			require.NoError(t, testkit.NewPublisher(t, s.Server).Publish(topic, msg))
			require.Eventually(t, func() bool {
				page, err := s.admin.History(ctx, named, admin.HistoryFilter{})
				return err == nil && len(page.Ended) == 1
			}, patience, 5*time.Millisecond)
			b.click("Find")
			for _, text := range []string{name, msg.UUID} {
				b.search(text)
				b.sees("Ended", "acked in mails", "after 1 delivery", topic, "of histories.")
				require.Equal(t, 1, b.rows())
			}
		}
		b.search("order 4712")
		b.sees("Nothing was found.", "Looked up the name in 2 lines of histories.")
	})
}

// Without contents nothing is found by metadata or payload.
func TestAViewerFindsByNamesOnly(t *testing.T) {
	t.Parallel()
	redistest.Real(t, func(t *testing.T, server redistest.Server) {
		s := serve(t, server, dashboard.User{Name: "vera", Role: dashboard.Viewer})
		msg := message.NewMessage("uuid 17", []byte("order 4711"))
		redisdelay.SetDelayID(msg, "reminder 17", redisdelay.DelayIDReplace)
		redisdelay.DelayFor(msg, time.Hour)
		require.NoError(t, testkit.NewPublisher(t, s.Server).Publish(topic, msg))
		b := open(t, s.address+"/find")
		b.sees("Metadata and payloads are hidden from you, so they are not searched.")
		require.NotContains(t, b.text(), "Text in the payload")
		b.search("4711")
		b.sees("Nothing was found.")
		b.search("reminder 17")
		b.sees("Waiting")
		require.Equal(t, 1, b.rows())
		require.NotContains(t, b.text(), "order 4711")
	})
}

// The parts of a search stand beside or below each other, on a screen and on a phone.
func TestAFormOfASearchIsAligned(t *testing.T) {
	on(t, func(t *testing.T, s *site) {
		s.die(1, 1)
		s.publish(topic, time.Hour, "order 4711")
		for _, look := range []step{wide, phone} {
			b := open(t, s.address+"/find?q=4711", look)
			b.aligned("form.filter", "label, button")
			b.do(chromedp.Navigate(s.address + "/topic?t=" + topic))
			b.click("Find a message")
			b.aligned("details[open] form", "label, button")
			b.aligned(".forms", "details")
			b.close()
		}
	})
}

// search types into the form of a search, and sends it.
func (b *tab) search(text string) {
	b.t.Helper()
	b.fill("q", text+kb.Enter)
	there := chromedp.Evaluate[bool](fmt.Sprintf(`document.readyState === "complete" && new URLSearchParams(location.search).get("q") === %q`, text))
	require.Eventually(b.t, func() bool { // while the page changes, there is an error
		is, err := chromedp.Run(b.ctx, there)
		return err == nil && is
	}, patience, 20*time.Millisecond)
}

// choose chooses from a list by the words.
func (b *tab) choose(name, words string) {
	b.t.Helper()
	b.do(script(fmt.Sprintf(`{const list = document.querySelector("main select[name=%s]"); list.value = [...list.options].find((o) => o.text === %q).value}`, name, words)))
}

// rows returns how many messages the page lists.
func (b *tab) rows() int {
	return got(b, chromedp.Evaluate[int](`document.querySelectorAll("main tbody tr").length`))
}

// aligned requires that no two parts of a form overlap, and that none is beyond the form. Those in
// one line have one upper or one lower edge.
func (b *tab) aligned(form, parts string) {
	b.t.Helper()
	wrong := got(b, chromedp.Evaluate[string](fmt.Sprintf(`(() => {
		const form = document.querySelector(%q), parts = [...form.querySelectorAll(%q)].filter((e) => e.offsetParent);
		const boxes = parts.map((e) => [e, e.getBoundingClientRect()]), outer = form.getBoundingClientRect(), wrong = [];
		for (const [e, r] of boxes) {
			if (r.left < outer.left - 1 || r.right > outer.right + 1) wrong.push("beyond the form: " + e.textContent);
			for (const [f, q] of boxes) {
				if (e === f) continue;
				if (r.left < q.right - 1 && q.left < r.right - 1 && r.top < q.bottom - 1 && q.top < r.bottom - 1) wrong.push("overlaps: " + e.textContent + " and " + f.textContent);
				const beside = r.top < q.bottom && q.top < r.bottom;
				if (beside && Math.abs(r.bottom - q.bottom) > 1 && Math.abs(r.top - q.top) > 1) wrong.push("not aligned: " + e.textContent + " and " + f.textContent);
			}
		}
		return wrong.join("; ");
	})()`, form, parts)))
	require.Empty(b.t, wrong)
}
