package dashboard

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/require"

	redisdelay "github.com/redisdelay/watermill-redisdelay"
	"github.com/redisdelay/watermill-redisdelay/admin"
	"github.com/redisdelay/watermill-redisdelay/internal/queue"
	"github.com/redisdelay/watermill-redisdelay/internal/test/redistest"
	"github.com/redisdelay/watermill-redisdelay/internal/test/testkit"
	"github.com/redisdelay/watermill-redisdelay/partition"
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
		b.sees("got 5,000 dead letters in the last hour")
		b.click("Reasons")
		b.sees("5,000 dead letters of group billing", "4,000", "no stock of article #", "1,000", "the customer is unknown")
		b.click("Requeue…")
		b.sees("Requeue 4,000 dead letters", "Make dead letters ready again")
		b.fill("spread", "1h")
		b.fill("typed-name", topic)
		b.fill("typed-count", "4000")
		b.click("Requeue 4,000 dead letters")
		b.sees("Done: 4,000 of 4,000")
		require.Equal(t, 1000, s.group().Dead)
		require.Equal(t, 4000, s.group().Retrying+s.group().Ready)

		b.click("Dead letters")
		b.sees("1,000 dead letters of group billing")
		b.click("Purge all…")
		b.fill("typed-name", topic)
		b.fill("typed-count", "999")
		b.click("Purge 1,000 dead letters")
		b.sees("The count that you typed is another one. Nothing was changed.")
		require.Equal(t, 1000, s.group().Dead)
		b.do(chromedp.Navigate(s.address + "/confirm?do=purge&g=" + group + "&t=" + topic))
		b.fill("typed-name", topic)
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

func TestALimitIsSetLiftedAndReset(t *testing.T) {
	on(t, func(t *testing.T, s *site) {
		s.register()
		b := open(t, s.address+"/topic?t="+topic)
		b.click("Limit a group")
		b.click("Limit")
		b.sees("Give a rate, a number at once, or both.")
		require.Zero(t, s.group().Limit)
		b = open(t, s.address+"/topic?t="+topic)
		b.click("Limit a group")
		b.fill("rate", "50/s")
		b.fill("burst", "10")
		b.fill("at-once", "5")
		b.do(chromedp.SendKeys(chromedp.CSS(`details[open] [name="why"]`), "the partner asks for it"))
		b.click("Limit")
		b.sees("50/s, burst 10, 5 at once, set by an operator")
		require.Equal(t, admin.Limit{Rate: 50, Burst: 10, AtOnce: 5}, s.group().Limit.Limit)
		b.click("Limit a group")
		b.click("Lift")
		b.sees("lifted; subscribers ask for no limit")
		require.True(t, s.group().Limit.Set)
		b.click("Limit a group")
		b.click("Reset to what subscribers ask for")
		b.sees("is now: no limit.")
		require.Zero(t, s.group().Limit)
		require.Equal(t, []string{"ann reset-limit", "ann lift-limit", "ann limit"}, s.acts())
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
		b.sees("Remove the group with 2 messages", "cannot be undone")
		b.fill("typed-name", topic)
		b.fill("typed-count", "2")
		b.click("Remove the group with 2 messages")
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
		b.do(chromedp.Click(chromedp.CSS(`a[href*="state=in_hand"]`)))
		b.sees("1 message in this state", "Lease ends")
		b.do(chromedp.Click(chromedp.CSS(`main a.row`)))
		b.sees("In hand of a consumer", "dashboard.test on", `slow`)
		slow.Ack()
		late := <-messages
		late.Ack()
		b.sees("There is no such message.")
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
		require.Equal(t, []string{"ann purge", "ann kill"}, s.acts())
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
	b.fill("typed-name", topic)
	b.fill("typed-count", "2000")
	b.click("Purge 2,000 dead letters")
	b.sees("Done: 2,000 of 2,000")
	require.Zero(t, s.group().Dead)
	s.publish(topic, time.Hour, "there is room again")
	b.click("Topics")
	b.sees("warning")
}

// A schedule that is paused and forgotten is found, with the one who paused it, and goes on.
func TestASchedulesPauseIsEndedAndTheScheduleRemoved(t *testing.T) {
	on(t, func(t *testing.T, s *site) {
		s.recur(topic, recurring)
		b := open(t, s.address)
		b.click("Schedules")
		b.sees(recurring, topic, "30 9 * * *", "UTC")
		b.click(recurring)
		b.sees("the last one is published", "Upcoming", "09:30:00 UTC")
		b.click("Pause or resume")
		b.click("Pause")
		b.sees("Paused, and 1 waiting occurrence taken back.", "by ann")
		require.Zero(t, s.schedule(topic, recurring).Waiting)
		b.click("Schedules")
		b.sees("paused by ann")
		b.click(recurring)
		b.click("Run now")
		b.click("Ask for an occurrence")
		b.sees("One occurrence is asked for.")
		require.Eventually(t, func() bool { return s.schedule(topic, recurring).Requested.IsZero() }, patience, 10*time.Millisecond, "no program published it")
		b.click("Pause or resume")
		b.click("Resume")
		b.sees("Resumed.")
		require.Eventually(t, func() bool { return s.schedule(topic, recurring).Waiting > 0 }, patience, 10*time.Millisecond)
		require.Nil(t, s.schedule(topic, recurring).Pause)

		b.click("Remove")
		b.click("Remove the schedule…")
		b.sees("Programs that run it leave it.", "Type the name of the schedule to confirm")
		count := got(b, chromedp.Value(chromedp.CSS(`input[name=count]`)))
		b.fill("typed-name", topic)
		b.fill("typed-count", count)
		b.do(chromedp.Click(chromedp.CSS(`.confirm button`)))
		b.sees("The name of the schedule that you typed is another one. Nothing was changed.")
		require.NotZero(t, s.schedule(topic, recurring).Version)
		b.do(chromedp.Navigate(s.address + "/confirm?do=remove-schedule&t=" + topic + "&s=daily+report"))
		count = got(b, chromedp.Value(chromedp.CSS(`input[name=count]`)))
		b.fill("typed-name", recurring)
		b.fill("typed-count", count)
		b.do(chromedp.Click(chromedp.CSS(`.confirm button`)))
		b.sees("Done")
		require.Zero(t, s.schedule(topic, recurring).Version)
		require.Equal(t, []string{"ann remove-schedule", "ann remove-schedule", "ann resume-schedule", "ann run-schedule", "ann pause-schedule"}, s.acts())
	})
}

// A damaged topic is checked, understood and mended.
func TestADamagedTopicIsCheckedAndMended(t *testing.T) {
	on(t, func(t *testing.T, s *site) {
		s.register()
		s.publish(topic, time.Hour, "x", "y", "z")
		keys := queue.NewKeys(s.Prefix, topic)
		require.NoError(t, s.Client.ZRemRangeByRank(ctx, keys.Pending(), 0, 1).Err()) // two messages are in no state
		b := open(t, s.address+"/topic?t="+topic)
		b.click("Check all data")
		b.click("Check")
		b.sees("Check of orders", "Done: read", "2 violation A message has a body, and is in no state, so nobody would get it.", "To mend it: It is due again in all groups.")
		b.click("Mend 2 violations…")
		b.sees("what is safe to mend is mended", "2 violations")
		b.fill("typed-name", topic)
		b.fill("typed-count", "2")
		b.click("Mend 2 violations")
		b.sees("Done: 2 of 2", "2 mended.", "Made it due again")
		report, err := s.admin.Check(ctx, topic)
		require.NoError(t, err)
		require.Empty(t, report.Violations())
		require.Equal(t, 3, s.stats().Messages)
		b.click(topic)
		b.click("Check all data")
		b.click("Check")
		b.sees("Done: read")
		require.NotContains(t, b.text(), "violation")
		require.Equal(t, []string{"ann repair", "ann repair"}, s.acts())
	})
}

// A message is found by its delay ID, among more than a page.
func TestAMessageIsFoundByItsDelayID(t *testing.T) {
	on(t, func(t *testing.T, s *site) {
		publisher := testkit.NewPublisher(t, s.Server)
		var all []*message.Message
		for i := range 1500 {
			msg := message.NewMessage(watermill.NewUUID(), fmt.Appendf(nil, "payload %d", i))
			redisdelay.SetDelayID(msg, fmt.Sprint("order ", i), redisdelay.DelayIDReplace)
			redisdelay.DelayFor(msg, time.Hour+time.Duration(i)*time.Second)
			all = append(all, msg)
		}
		require.NoError(t, publisher.Publish(topic, all...))
		b := open(t, s.address+"/messages?t="+topic)
		b.sees("1,500 messages in this state", "order 49")
		b.fill("delay-id", "order 1400")
		b.click("Filter")
		b.sees("order 1400", "payload 1400")
		require.NotContains(t, b.text(), "payload 1401")
		b.fill("delay-id", "order 7")
		b.click("Filter")
		b.sees("payload 7")
		b.click("Next page")
		b.sees("No message matches.")
		b.click("First page")
		b.sees("payload 7")
	})
}

// A partitioned topic is one row. Its page has a row for each partition, and pauses all of them.
func TestAPartitionedTopicIsOperatedAsOne(t *testing.T) {
	on(t, func(t *testing.T, s *site) {
		names, err := partition.Topics("parcels", 3)
		require.NoError(t, err)
		publisher := testkit.NewPublisher(t, s.Server)
		for i, name := range names {
			msg := message.NewMessage(watermill.NewUUID(), []byte("parcel"))
			redisdelay.DelayFor(msg, time.Hour+time.Duration(i)*time.Second)
			require.NoError(t, publisher.Publish(name, msg))
		}
		b := open(t, s.address+"/")
		b.sees("parcels", "3 partitions")
		b.click("parcels")
		b.sees(names...)
		accessible(t, b, "a partitioned topic")
		b.click("Pause or resume")
		b.click("Pause")
		b.sees("Paused.")
		stats, err := s.admin.Stats(ctx, "parcels")
		require.NoError(t, err)
		for _, p := range stats.Partitions {
			require.NotNil(t, p.Pause, p.Topic)
		}
		b.click(names[1])
		b.sees(names[1])
		require.NotContains(t, b.text(), names[2], "the page of one partition")
	})
}

// The timeline follows a message through its deliveries, in each group.
func TestTheTimelineFollowsAMessage(t *testing.T) {
	on(t, func(t *testing.T, s *site) {
		messages := testkit.SubscribeTo(t, s.subscriber(1), topic)
		s.publish(topic, 0, "x")
		msg := <-messages
		d, _ := redisdelay.DeliveryFromContext(msg.Context())
		b := open(t, s.address+"/message?t="+topic+"&id="+d.ID)
		b.sees("Published", "In hand of a consumer billing", "dashboard.test on", "Its lease ends, unless it is extended", "It keeps how many deliveries failed")
		redisdelay.DelayFor(msg, time.Hour)
		msg.Nack()
		b.sees("Failed, and waits for its next delivery", "1 delivery of at most 25 failed")
		require.NoError(t, s.admin.Reschedule(ctx, topic, admin.ByID(d.ID), admin.When{}))
		again := <-messages
		redisdelay.DeadOnNack(again, errors.New("the customer is unknown"))
		again.Nack()
		b.sees("Dead letter billing", "last reason the customer is unknown", "Is deleted")
	})
}

func TestAMessageThatEndedIsFoundWithWhatBecameOfIt(t *testing.T) {
	on(t, func(t *testing.T, s *site) {
		s.register()
		b := open(t, s.address+"/ended?t="+topic)
		b.sees("No group of this topic keeps a history.")
		_, err := s.admin.SetHistory(t.Context(), topic, group, admin.History{Retention: time.Hour})
		require.NoError(t, err)
		msg := message.NewMessage("uuid of 4711", []byte("x"))
		msg.Metadata.Set(redisdelay.DelayIDKey, "order 4711")
		redisdelay.DelayFor(msg, time.Hour)
		require.NoError(t, testkit.NewPublisher(t, s.Server).Publish(topic, msg))
		require.NoError(t, s.admin.Cancel(t.Context(), topic, admin.ByDelayID("order 4711")))

		b.do(chromedp.Navigate(s.address + "/topic?t=" + topic))
		b.click("Ended messages")
		b.sees("cancelled", "order 4711", "keeps 1h0m0s, 10,000 messages")
		b.fill("name", "no such order")
		b.click("Look up")
		b.sees("Nothing of that name is in the history.")
		b.do(chromedp.Navigate(s.address + "/message?t=" + topic + "&id=order+4711"))
		b.sees("Published", "Cancelled", "uuid of 4711", "The message has ended.")
	})
}
