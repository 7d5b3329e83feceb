package dashboard

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/require"

	redisdelay "github.com/redisdelay/watermill-redisdelay"
	"github.com/redisdelay/watermill-redisdelay/admin"
	"github.com/redisdelay/watermill-redisdelay/internal/test/testkit"
)

// An operator frees what a worker holds, and another one gets it.
func TestAnOperatorFreesWhatAHungWorkerHolds(t *testing.T) {
	on(t, func(t *testing.T, s *site) {
		long := func(c *redisdelay.SubscriberConfig) {
			c.ConsumerGroup, c.MaxInFlight, c.LeaseDuration, c.CloseTimeout = group, 2, time.Hour, time.Millisecond
		}
		hangs := testkit.SubscribeTo(t, testkit.NewSubscriber(t, s.Server, long), topic)
		s.publish(topic, 0, "a", "b")
		testkit.Receive(t, hangs)
		testkit.Receive(t, hangs)
		require.Eventually(t, func() bool { return s.group().InHand == 2 }, patience, 5*time.Millisecond)
		other := testkit.SubscribeTo(t, testkit.NewSubscriber(t, s.Server, long), topic)
		b := open(t, s.address+"/topic?t="+topic)
		b.click("Release…")
		b.sees("2 messages, the oldest since", "It counts as an expiry.")
		b.click("Release 2 messages")
		b.sees("Released: 2 messages of ", "Other consumers get them.")
		testkit.Receive(t, other).Ack()
		testkit.Receive(t, other).Ack()
		require.Equal(t, []string{"ann release-worker"}, s.acts())
	})
}

// An operator has a group keep a history, changes that and takes it back.
func TestAnOperatorKeepsAHistory(t *testing.T) {
	on(t, func(t *testing.T, s *site) {
		s.register()
		b := open(t, s.address+"/topic?t="+topic)
		b.click("Keep a history")
		b.fill("keep", "7d")
		b.fill("most", "500")
		b.click("Keep")
		b.sees("The history of group billing is now: 168h0m0s, 500 messages, set by an operator.")
		require.Equal(t, admin.History{Retention: 7 * 24 * time.Hour, Max: 500}, s.group().History.History)
		b.click("Keep a history")
		b.sees("Group billing now: 168h0m0s, 500 messages, set by an operator.")
		b.click("Keep none")
		b.sees("is now: no history, set by an operator.")
		b.click("Keep a history")
		b.click("As subscribers ask")
		b.sees("is now: no history.")
		require.Zero(t, s.group().History)
		require.Equal(t, []string{"ann reset-history", "ann keep-history", "ann keep-history"}, s.acts())
	})
}

// An operator finds who moved a message last night, and when it was due.
func TestAnOperatorFindsWhoMovedAMessage(t *testing.T) {
	on(t, func(t *testing.T, s *site) {
		require.NoError(t, s.admin.Record(ctx, admin.Act{By: "bob", Action: "pause", Topic: "mails"}))
		s.publish(topic, time.Hour, "x")
		page, err := s.admin.List(ctx, topic, admin.Query{State: admin.Waiting})
		require.NoError(t, err)
		b := open(t, s.address+"/message?t="+topic+"&id="+page.Messages[0].ID)
		b.click("Deliver now, or later")
		b.fill("in", "5h")
		b.click("Reschedule")
		b.sees("Rescheduled")
		b.click("Audit log")
		b.sees("bob pause mails", "in 5h0m0s, due was 20")
		b.fill("t", topic)
		b.fill("since", "20h")
		b.click("Filter")
		require.Eventually(t, func() bool { return !strings.Contains(b.text(), "bob") }, 10*time.Second, 50*time.Millisecond, "the page before stays")
		b.sees(page.Messages[0].DueText())
		b.fill("t", "nothing")
		b.click("Filter")
		b.sees("Nothing of that is in the audit log.")
	})
}

// A file of dead letters from the page is the one that the tool writes.
func TestAnOperatorExportsDeadLetters(t *testing.T) {
	on(t, func(t *testing.T, s *site) {
		s.die(20, 10)
		b := open(t, s.address+"/dead?t="+topic)
		b.sees("20 dead letters of group billing", "Export all")
		lines := got(b, chromedp.Evaluate[string](`(() => {
			const link = [...document.querySelectorAll("a")].find((a) => a.textContent === "Export all");
			const request = new XMLHttpRequest();
			request.open("GET", link.href, false);
			request.send();
			return request.responseText;
		})()`))
		require.Equal(t, 20, strings.Count(lines, "\n"))
		var l admin.Letter
		require.NoError(t, json.Unmarshal([]byte(strings.Split(lines, "\n")[0]), &l))
		require.Equal(t, "gift", l.Metadata["kind"])
		require.Equal(t, group, l.Group)
	})
}
