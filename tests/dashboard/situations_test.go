package dashboard

import (
	"strings"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/require"

	"github.com/redisdelay/watermill-redisdelay/admin"
	"github.com/redisdelay/watermill-redisdelay/internal/queue"
	"github.com/redisdelay/watermill-redisdelay/internal/redistest"
	"github.com/redisdelay/watermill-redisdelay/internal/testkit"
)

// on runs a test with a page of an operator on the real server.
func on(t *testing.T, test func(t *testing.T, s *site)) {
	t.Helper()
	t.Parallel()
	redistest.Real(t, func(t *testing.T, server redistest.Server) { test(t, serve(t, server, operator)) })
}

func TestThousandsOfDeadLettersAreRequeuedAndPurgedByReason(t *testing.T) {
	on(t, func(t *testing.T, s *site) {
		s.die(5000, 10)
		b := open(t, s.address)
		b.sees("got 5000 dead letters in the last hour")
		b.click("Reasons")
		b.sees("5,000 dead letters of group billing", "4,000", "no stock of article #", "1,000", "the customer is unknown")
		b.click("Requeue…")
		b.sees("Requeue 4,000 dead letters", "They become ready again")
		b.fill("spread", "1h")
		b.fill("typed-topic", topic)
		b.fill("typed-count", "4000")
		b.click("Requeue 4,000 dead letters")
		b.sees("Done: 4,000 of 4,000")
		require.Equal(t, 1000, s.group().Dead)
		require.Equal(t, 4000, s.group().Retrying+s.group().Ready)

		b.click("Dead letters")
		b.sees("1,000 dead letters of group billing")
		b.click("Purge all…")
		b.fill("typed-topic", topic)
		b.fill("typed-count", "999")
		b.click("Purge 1,000 dead letters")
		b.sees("The count that you typed is another one. Nothing was changed.")
		require.Equal(t, 1000, s.group().Dead)
		b.do(chromedp.Navigate(s.address + "/confirm?do=purge&g=" + group + "&t=" + topic))
		b.fill("typed-topic", topic)
		b.fill("typed-count", "1,000")
		b.click("Purge 1,000 dead letters")
		b.sees("Done: 1,000 of 1,000")
		b.click("Dead letters")
		b.sees("There are no dead letters in group billing.")
		require.Zero(t, s.group().Dead)
		b.click("Audit log")
		b.sees("begins with 4,000 dead letters", "over 1h0m0s", "done: 1,000 dead letters")
		require.Equal(t, []string{"ann purge", "ann purge", "ann requeue", "ann requeue"}, s.acts())
	})
}

func TestAForgottenPauseIsEnded(t *testing.T) {
	on(t, func(t *testing.T, s *site) {
		s.register()
		s.publish(topic, 0, "x")
		_, err := s.admin.Pause(ctx, topic, admin.PauseOptions{By: "bob", Why: "deploy of billing"})
		require.NoError(t, err)
		b := open(t, s.address)
		b.sees(`by "bob"`, `because: "deploy of billing"`, "paused")
		b.click("Topic")
		b.click("Pause or resume")
		b.click("Resume")
		b.sees("Resumed.")
		require.Nil(t, s.stats().Pause)
		b.click("Pause or resume")
		b.fill("why", "the warehouse moves")
		b.fill("for", "2h")
		b.click("Pause")
		b.sees(`because: "the warehouse moves"`)
		require.Equal(t, "ann", s.stats().Pause.By)
		require.Equal(t, []string{"ann pause", "ann resume"}, s.acts())
	})
}

func TestAGroupThatNobodyReadsIsRemoved(t *testing.T) {
	on(t, func(t *testing.T, s *site) {
		s.register()
		s.publish(topic, 0, "x", "y")
		sub := testkit.NewSubscriber(t, s.Server) // does the due-time work, for another group
		require.NoError(t, sub.SubscribeInitialize("another"))
		s.age()
		b := open(t, s.address)
		b.sees(`Nobody subscribes to group "billing" of topic "orders"`)
		b.click("Topic")
		b.sees("none, last 1 h ago", "Nobody subscribes now.")
		b.click("Remove")
		b.click("Remove group billing…")
		b.sees("Remove group with 2 messages", "cannot be brought back")
		b.fill("typed-topic", topic)
		b.fill("typed-count", "2")
		b.click("Remove group with 2 messages")
		b.sees("Done: 2 of 2")
		require.Empty(t, s.stats().Groups)
		require.Equal(t, []string{"ann remove-group", "ann remove-group"}, s.acts())
	})
}

func TestLateMessagesShowWhoHoldsThemUp(t *testing.T) {
	on(t, func(t *testing.T, s *site) {
		messages := testkit.SubscribeTo(t, s.subscriber(1), topic)
		s.publish(topic, 0, "slow", "late")
		slow := <-messages
		s.age()
		b := open(t, s.address)
		b.sees(`The subscribers of group "billing" of topic "orders" do not keep up`)
		b.click("Topic")
		b.sees("Consumers", "process", group)
		b.do(chromedp.Click(`a[href*="state=unack"]`, chromedp.ByQuery))
		b.sees("1 message in this state", "Lease ends")
		b.do(chromedp.Click(`main a.row`, chromedp.ByQuery))
		b.sees("In hand of a consumer", "in hand since", "of dashboard.test on", `slow`)
		slow.Ack()
		late := <-messages
		late.Ack()
		b.sees("It is not in Redis.")
		require.Eventually(t, func() bool { return s.stats().Messages == 0 }, patience, 5*time.Millisecond)
	})
}

func TestAPoisonousMessageIsKilled(t *testing.T) {
	on(t, func(t *testing.T, s *site) {
		s.register()
		s.publish(topic, 0, "poison")
		keys := queue.NewKeys(s.Prefix, topic)
		sub := testkit.NewSubscriber(t, s.Server)
		require.NoError(t, sub.SubscribeInitialize("another"))
		require.Eventually(t, func() bool { return s.Client.LLen(ctx, keys.Ready(group)).Val() > 0 }, patience, 5*time.Millisecond)
		id := s.Client.LIndex(ctx, keys.Ready(group), 0).Val()[:26]
		require.NoError(t, s.Client.HSet(ctx, keys.Suspects(group), id, "3 - -").Err()) // as if its processes had crashed
		require.NoError(t, s.Client.HSet(ctx, keys.Deliveries(group), id, "0 d -").Err())
		b := open(t, s.address)
		b.sees("has lost its lease 3 times in a row, and may end its processes")
		b.click("Message")
		b.sees("Ready: waits for a consumer", "poison")
		b.click("Make it a dead letter of billing")
		b.fill("why", "it crashes the parser")
		b.click("Kill the message")
		b.sees("It is a dead letter now.", "killed: it crashes the parser")
		require.Equal(t, 1, s.group().Dead)
		b.click("Dead letter of billing")
		b.click("Delete")
		b.sees("Deleted.")
		require.Zero(t, s.stats().Messages)
		require.Equal(t, []string{"ann delete", "ann kill"}, s.acts())
	})
}

func TestAFullRedisIsSeenAndRelieved(t *testing.T) {
	t.Parallel()
	in := redistest.Start(t, "--maxmemory", "40mb", "--maxmemory-policy", "noeviction")
	s := serve(t, redistest.On(t, in.Client(t), "full"), operator)
	s.die(2000, 4000)
	for i := 0; s.Client.Set(ctx, "filler "+strings.Repeat("x", i), strings.Repeat("x", 100_000), 0).Err() == nil; i++ { // until it is full
	}
	b := open(t, s.address)
	b.sees("of its maxmemory, and refuses new messages", "critical")
	b.do(chromedp.Navigate(s.address + "/dead?t=" + topic))
	b.click("Purge all…")
	b.fill("typed-topic", topic)
	b.fill("typed-count", "2000")
	b.click("Purge 2,000 dead letters")
	b.sees("Done: 2,000 of 2,000")
	require.Zero(t, s.group().Dead)
	s.publish(topic, time.Hour, "there is room again")
	b.click("Topics")
	b.sees("warning")
}
