package admin_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/redis/go-redis/v9"

	redisdelay "github.com/redisdelay/watermill-redisdelay"
	"github.com/redisdelay/watermill-redisdelay/admin"
	"github.com/redisdelay/watermill-redisdelay/partition"
	"github.com/redisdelay/watermill-redisdelay/periodic"
	"github.com/redisdelay/watermill-redisdelay/redisdelaytest"
)

// The code of cancel is also in docs/control.md.
func cancel(ctx context.Context, client redis.UniversalClient) error {
	a, err := admin.New(admin.Config{Client: client})
	if err != nil {
		return err
	}
	err = a.Cancel(ctx, "unpaid-orders", admin.ByDelayID("order 123")) // as SetDelayID named it
	if errors.Is(err, admin.ErrNotFound) || errors.Is(err, admin.ErrTooLate) {
		err = nil // no such name, or it is due: handled, or being handled
	}
	return err
}

// remind has one reminder under a delay ID, also if an older one waits for a retry.
func remind(ctx context.Context, a *admin.Admin, p *redisdelay.Publisher, reminder *message.Message) error {
	id := reminder.Metadata.Get(redisdelay.DelayIDKey)
	err := a.Cancel(ctx, "reminders", admin.ByDelayID(id))
	if err != nil && !errors.Is(err, admin.ErrNotFound) {
		return err // with ErrTooLate a group handles the old one right now, or has it as a dead letter
	}
	return p.Publish("reminders", reminder)
}

// A reminder waits for its retry, and the new one is the only one that comes.
func ExampleByDelayID() {
	s := start()
	defer s.stop()
	for range 2 {
		reminder := message.NewMessage("uuid", []byte("order 123"))
		redisdelay.SetDelayID(reminder, "order 123", redisdelay.DelayIDReplace)
		redisdelay.DelayFor(reminder, time.Hour)
		check(remind(ctx, s.admin, s.publisher, reminder))
	}
	fmt.Println("waiting:", len(s.server.Scheduled("reminders")))

	// Output: waiting: 1
}

// An order is paid in time.
func Example() {
	s := start()
	defer s.stop()
	s.publish("unpaid-orders", "order 123", 15*time.Minute)

	fmt.Println("waiting:", len(s.server.Scheduled("unpaid-orders")))
	check(cancel(ctx, s.server.Client()))
	fmt.Println("waiting:", len(s.server.Scheduled("unpaid-orders")))

	// Output:
	// waiting: 1
	// waiting: 0
}

func ExampleAdmin_Cancel() {
	s := start()
	defer s.stop()
	s.publish("orders", "order 123", time.Hour)

	fmt.Println(s.admin.Cancel(ctx, "orders", admin.ByDelayID("order 123")))
	err := s.admin.Cancel(ctx, "orders", admin.ByDelayID("order 123"))
	fmt.Println("not found:", errors.Is(err, admin.ErrNotFound))

	// Output:
	// <nil>
	// not found: true
}

func ExampleAdmin_Reschedule() {
	s := start()
	defer s.stop()
	s.publish("orders", "order 123", time.Hour)

	check(s.admin.Reschedule(ctx, "orders", admin.ByDelayID("order 123"), admin.In(10*time.Minute)))
	due := s.server.Scheduled("orders")[0].Places[0].At
	fmt.Println("due in", due.Sub(s.server.Now()))

	// Output: due in 10m0s
}

func ExampleAdmin_Reschedule_now() {
	s := start()
	defer s.stop()
	messages := s.subscribe("orders")
	s.publish("orders", "order 123", time.Hour)

	check(s.admin.Reschedule(ctx, "orders", admin.ByDelayID("order 123"), admin.When{}))
	msg := <-messages
	msg.Ack()
	delivery, _ := redisdelay.DeliveryFromContext(msg.Context())
	fmt.Println("delivered:", delivery.DelayID)

	// Output: delivered: order 123
}

// The partner is closed for a day: cancel what waits for it, after a look at how many.
func ExampleAdmin_CancelAll() {
	s := start()
	defer s.stop()
	for _, name := range []string{"order 1", "order 2", "gift 1"} {
		s.publish("orders", name, time.Hour)
	}

	bulk := admin.Bulk{Filter: admin.Filter{Match: func(m admin.Message) bool { return strings.HasPrefix(m.DelayID, "order") }}, DryRun: true}
	n, err := s.admin.CancelAll(ctx, "orders", bulk)
	check(err)
	fmt.Println(n, "would be cancelled")
	bulk.DryRun = false
	n, err = s.admin.CancelAll(ctx, "orders", bulk)
	check(err)
	fmt.Println(n, "cancelled,", len(s.server.Scheduled("orders")), "waits")

	// Output:
	// 2 would be cancelled
	// 2 cancelled, 1 waits
}

// Move messages by two hours. With the same list, a second run moves none of them again.
func ExampleAdmin_RescheduleAll() {
	s := start()
	defer s.stop()
	s.publish("orders", "order 1", time.Hour)
	s.publish("orders", "order 2", 2*time.Hour)

	page, err := s.admin.List(ctx, "orders", admin.Query{State: admin.Waiting})
	check(err)
	listed := func(yield func(admin.Message, error) bool) {
		for _, m := range page.Messages {
			if !yield(m, nil) {
				return
			}
		}
	}
	for range 2 {
		n, err := s.admin.RescheduleAll(ctx, "orders", admin.Bulk{By: 2 * time.Hour, Listed: listed})
		check(err)
		fmt.Println(n, "moved")
	}
	for _, m := range s.server.Scheduled("orders") {
		fmt.Println(m.DelayID, "is due in", m.Places[0].At.Sub(s.server.Now()))
	}

	// Output:
	// 2 moved
	// 0 moved
	// order 1 is due in 3h0m0s
	// order 2 is due in 4h0m0s
}

func ExampleAdmin_Tail() {
	s := start()
	defer s.stop()
	s.publish("orders", "order 123", time.Hour)

	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	_, err := s.admin.Tail(ctx, "orders", func(m admin.Message) bool {
		fmt.Println("due:", m.DelayID)
		return false // this one is enough
	}, admin.TailOptions{Began: func() { s.server.Advance(time.Hour) }})
	check(err)

	// Output: due: order 123
}

func ExampleAdmin_AddGroup() {
	s := start()
	defer s.stop()
	s.publish("orders", "order 123", time.Hour)

	added, err := s.admin.AddGroup(ctx, "orders", "billing", admin.GroupSettings{})
	check(err)
	fmt.Println(added.Group, "existed:", added.Existed)

	// Output: billing existed: false
}

func ExampleAdmin_Topics() {
	s := start()
	defer s.stop()
	s.publish("orders", "order 123", time.Hour)

	for cursor := ""; ; {
		topics, next, err := s.admin.Topics(ctx, cursor, 100)
		check(err)
		for _, topic := range topics {
			fmt.Println(topic)
		}
		if cursor = next; cursor == "" {
			break
		}
	}

	// Output: orders
}

func ExampleAdmin_Stats() {
	s := start()
	defer s.stop()
	s.register("orders", "billing")
	s.publish("orders", "order 1", 0)
	s.publish("orders", "order 2", time.Hour)

	stats, err := s.admin.Stats(ctx, "orders")
	check(err)
	fmt.Println(stats.Waiting, "waiting, next due in", stats.NextDue.Sub(stats.Now))
	for _, g := range stats.Groups {
		fmt.Printf("%s: %d ready, subscribed: %t\n", g.Group, g.Ready, g.Subscribed)
	}

	// Output:
	// 1 waiting, next due in 1h0m0s
	// billing: 1 ready, subscribed: false
}

// The types of this package read what the tool prints with --json.
func ExampleGroupStats() {
	printed := `{"group":"billing","ready":2,"dead_retention":"720h0m0s","lateness":[{"at_most":"5ms","count":98},{"at_most":"1s","count":2}]}`

	var g admin.GroupStats
	check(json.Unmarshal([]byte(printed), &g))
	fmt.Println(g.Group, g.Ready, g.DeadRetention)
	fmt.Println("99 % were at most", g.Lateness.Quantile(0.99), "late")

	// Output:
	// billing 2 720h0m0s
	// 99 % were at most 1s late
}

func ExampleAdmin_Overview() {
	s := start()
	defer s.stop()
	s.publish("invoices", "invoice 1", time.Hour)
	s.publish("orders", "order 123", time.Hour)
	s.register("orders", "billing")

	for cursor := ""; ; {
		page, next, err := s.admin.Overview(ctx, cursor, 100)
		check(err)
		slices.SortFunc(page, func(a, b admin.Stats) int { return strings.Compare(a.Topic, b.Topic) })
		for _, stats := range page {
			check(stats.Err)
			fmt.Println(stats.Topic, "waiting:", stats.Waiting, "groups:", len(stats.Groups))
		}
		if cursor = next; cursor == "" {
			break
		}
	}

	// Output:
	// invoices waiting: 1 groups: 0
	// orders waiting: 1 groups: 1
}

// All pages together, with one entry for a partitioned topic.
func ExampleFold() {
	s := start()
	defer s.stop()
	s.partitioned("orders", 3)
	s.publish("mails", "mail 1", time.Hour)

	page, _, err := s.admin.Overview(ctx, "", 100)
	check(err)
	topics := admin.Fold(page)
	slices.SortFunc(topics, func(a, b admin.Stats) int { return strings.Compare(a.Topic, b.Topic) })
	for _, stats := range topics {
		fmt.Println(stats.Topic, "waiting:", stats.Waiting)
		for _, p := range stats.Partitions {
			fmt.Println("  ", p.Topic, "waiting:", p.Waiting)
		}
	}

	// Output:
	// mails waiting: 1
	// orders waiting: 3
	//    orders-p0-40 waiting: 1
	//    orders-p1-1147 waiting: 1
	//    orders-p2-401 waiting: 1
}

func ExampleAdmin_Plain() {
	s := start()
	defer s.stop()
	s.partitioned("orders", 3)
	s.publish("mails", "mail 1", time.Hour)

	topics, err := s.admin.Plain(ctx, "mails", "orders")
	check(err)
	fmt.Println(topics)

	// Output: [mails orders-p0-40 orders-p1-1147 orders-p2-401]
}

// A topic shrinks when the partitions that go are empty.
func ExampleAdmin_SetPartitions() {
	s := start()
	defer s.stop()
	s.partitioned("orders", 3)

	p, err := s.admin.SetPartitions(ctx, "orders", 2)
	check(err)
	fmt.Println(p.Partitions, "partitions, before", p.Before, "done:", p.Done())
	s.server.Advance(time.Minute) // no publisher uses 3 partitions any more
	p, err = s.admin.SetPartitions(ctx, "orders", 2)
	check(err)
	fmt.Println(p.Left)
	check(s.admin.Cancel(ctx, "orders-p2-401", admin.ByDelayID("delay ID")))
	p, err = s.admin.SetPartitions(ctx, "orders", 2)
	check(err)
	fmt.Println("done:", p.Done())

	// Output:
	// 2 partitions, before 3 done: false
	// [Partition "orders-p2-401" has messages: 1, and 0 dead letters.]
	// done: true
}

func ExampleAdmin_Workers() {
	s := start()
	defer s.stop()
	messages := s.subscribe("orders")
	check(s.publisher.Publish("orders", message.NewMessage("1", nil)))
	msg := <-messages

	workers, err := s.admin.Workers(ctx, "orders")
	check(err)
	for _, w := range workers {
		fmt.Println(w.Group, "of this process:", w.PID == os.Getpid(), "in hand:", w.InHand)
	}
	msg.Ack()

	// Output: default of this process: true in hand: 1
}

func ExampleAdmin_List() {
	s := start()
	defer s.stop()
	s.publish("orders", "order 1", time.Hour)
	s.publish("orders", "order 2", 2*time.Hour)
	s.publish("orders", "order 3", 3*time.Hour)

	query := admin.Query{State: admin.Waiting, Limit: 2, Filter: admin.Filter{
		Match: func(m admin.Message) bool { return m.DelayID != "order 2" },
	}}
	for {
		page, err := s.admin.List(ctx, "orders", query)
		check(err)
		for _, m := range page.Messages {
			fmt.Printf("%s in %v: %s\n", m.DelayID, m.Places[0].At.Sub(s.server.Now()), m.Payload)
		}
		if query.Cursor = page.Next; query.Cursor == "" {
			break
		}
	}

	// Output:
	// order 1 in 1h0m0s: not paid
	// order 3 in 3h0m0s: not paid
}

func ExampleAdmin_Get() {
	s := start()
	defer s.stop()
	s.publish("orders", "order 123", time.Hour)

	m, err := s.admin.Get(ctx, "orders", admin.ByDelayID("order 123"))
	check(err)
	fmt.Printf("%s is %s: %s\n", m.UUID, m.Places[0].State, m.Payload)

	// Output: uuid of order 123 is waiting: not paid
}

func ExampleAdmin_Find() {
	s := start()
	defer s.stop()
	s.publish("orders", "order 4711", time.Hour)
	s.publish("reminders", "reminder of order 4711", 2*time.Hour)
	s.publish("reminders", "reminder of order 4712", 2*time.Hour)

	found, err := s.admin.Find(ctx, admin.Search{Filter: admin.Filter{Any: "order 4711"}})
	check(err)
	for _, m := range found.Messages {
		fmt.Printf("%s of topic %s is %s\n", m.DelayID, m.Topic, m.Places[0].State)
	}
	fmt.Println(found.Ended, found.Looked, "messages in", len(found.Topics), "topics")

	// Output:
	// order 4711 of topic orders is waiting
	// reminder of order 4711 of topic reminders is waiting
	// complete 3 messages in 2 topics
}

func ExampleAdmin_Upcoming() {
	s := start()
	defer s.stop()
	for i := range 5 {
		s.publish("orders", fmt.Sprint("order ", i), time.Duration(i)*time.Hour+time.Minute)
	}

	buckets, err := s.admin.Upcoming(ctx, "orders", admin.Load{Width: 2 * time.Hour, Buckets: 3})
	check(err)
	for _, b := range buckets {
		fmt.Println("from", b.From.Sub(s.server.Now()), "on:", b.Waiting)
	}

	// Output:
	// from 0s on: 2
	// from 2h0m0s on: 2
	// from 4h0m0s on: 1
}

func ExampleAdmin_Requeue() {
	s := start()
	defer s.stop()
	messages := s.die("orders", "order 123")

	page, err := s.admin.List(ctx, "orders", admin.Query{State: admin.Dead})
	check(err)
	dead := page.Messages[0]
	fmt.Println("dead:", dead.Places[0].Reason)
	check(s.admin.Requeue(ctx, "orders", admin.GroupMessage{ID: dead.ID}))
	msg := <-messages
	msg.Ack()
	delivery, _ := redisdelay.DeliveryFromContext(msg.Context())
	fmt.Println("delivery", delivery.Number, "redelivered:", delivery.Redelivered)

	// Output:
	// dead: nacked on the last of 1 deliveries
	// delivery 1 redelivered: true
}

func ExampleAdmin_RequeueAll() {
	s := start()
	defer s.stop()
	s.die("orders", "order 1", "order 2", "order 3")

	n, err := s.admin.RequeueAll(ctx, "orders", admin.Bulk{
		Filter:   admin.Filter{Match: func(m admin.Message) bool { return !strings.HasSuffix(m.UUID, "2") }},
		Progress: func(p admin.Progress) { fmt.Println("looked at", p.Looked, "requeued", p.Done) },
	})
	check(err)
	fmt.Println(n, "requeued")

	// Output:
	// looked at 3 requeued 2
	// 2 requeued
}

// Requeue a thousand dead letters of today, spread over ten minutes, after a look at how many.
func ExampleBulk() {
	s := start()
	defer s.stop()
	s.die("orders", "order 1", "order 2", "order 3")

	bulk := admin.Bulk{
		Filter: admin.Filter{From: s.server.Now().Add(-24 * time.Hour)},
		Limit:  1000,
		Spread: 10 * time.Minute,
		DryRun: true,
	}
	n, err := s.admin.RequeueAll(ctx, "orders", bulk)
	check(err)
	fmt.Println(n, "would be requeued")
	bulk.DryRun = false
	n, err = s.admin.RequeueAll(ctx, "orders", bulk)
	check(err)
	fmt.Println(n, "requeued")

	// Output:
	// 3 would be requeued
	// 3 requeued
}

func ExampleAdmin_DeadReasons() {
	s := start()
	defer s.stop()
	s.die("orders", "order 1", "order 2", "order 3")

	reasons, err := s.admin.DeadReasons(ctx, "orders", admin.Bulk{})
	check(err)
	for _, r := range reasons.Reasons {
		fmt.Println(r.Count, r.Reason, "such as", r.Sample.UUID)
	}

	// Output: 3 nacked on the last of # deliveries such as order 3
}

func ExampleFilter() {
	s := start()
	defer s.stop()
	s.publish("orders", "order 123", time.Hour)
	s.publish("orders", "order 124", time.Hour)

	page, err := s.admin.List(ctx, "orders", admin.Query{
		State:  admin.Waiting,
		Filter: admin.Filter{UUID: "uuid of order 124"},
	})
	check(err)
	for _, m := range page.Messages {
		fmt.Println(m.DelayID)
	}

	// Output: order 124
}

func ExampleAdmin_Kill() {
	s := start()
	defer s.stop()
	messages := s.subscribe("orders")
	check(s.publisher.Publish("orders", message.NewMessage("poison", nil)))
	msg := <-messages
	delivery, _ := redisdelay.DeliveryFromContext(msg.Context())

	state, err := s.admin.Kill(ctx, "orders", admin.GroupMessage{ID: delivery.ID}, admin.KillOptions{Reason: "it never ends"})
	check(err)
	fmt.Println("in hand:", state == admin.InHand)
	<-msg.Context().Done() // the handler returns
	msg.Nack()
	fmt.Println("lost:", errors.Is(context.Cause(msg.Context()), redisdelay.ErrLeaseLost))
	page, err := s.admin.List(ctx, "orders", admin.Query{State: admin.Dead})
	check(err)
	fmt.Println(page.Messages[0].UUID, "is dead:", page.Messages[0].Places[0].Reason)

	// Output:
	// in hand: true
	// lost: true
	// poison is dead: killed: it never ends
}

func ExampleAdmin_FindActs() {
	s := start()
	defer s.stop()
	check(s.admin.Record(ctx, admin.Act{By: "ann", Action: "pause", Topic: "orders"}))
	check(s.admin.Record(ctx, admin.Act{By: "bob", Action: "resume", Topic: "orders"}))

	page, err := s.admin.FindActs(ctx, admin.ActFilter{By: "ann", Since: time.Now().Add(-20 * time.Hour)})
	check(err)
	for _, act := range page.Acts {
		fmt.Println(act.By, act.Action, act.Topic)
	}

	// Output: ann pause orders
}

func ExampleAdmin_ReleaseWorker() {
	s := start()
	defer s.stop()
	hangs := s.subscribe("orders")
	check(s.publisher.Publish("orders", message.NewMessage("order 1", nil)))
	<-hangs // its handler never ends
	workers, err := s.admin.Workers(ctx, "orders")
	check(err)
	other := s.subscribe("orders")

	n, err := s.admin.ReleaseWorker(ctx, workers[0])
	check(err)
	fmt.Println(n, "released")
	msg := <-other
	fmt.Println(msg.UUID, "comes again")
	msg.Ack()

	// Output:
	// 1 released
	// order 1 comes again
}

func ExampleAdmin_DeleteDead() {
	s := start()
	defer s.stop()
	s.die("orders", "order 123")

	page, err := s.admin.List(ctx, "orders", admin.Query{State: admin.Dead})
	check(err)
	check(s.admin.DeleteDead(ctx, "orders", admin.GroupMessage{ID: page.Messages[0].ID}))
	err = s.admin.DeleteDead(ctx, "orders", admin.GroupMessage{ID: page.Messages[0].ID})
	fmt.Println("not found:", errors.Is(err, admin.ErrNotFound))

	// Output: not found: true
}

func ExampleAdmin_PurgeDead() {
	s := start()
	defer s.stop()
	s.die("orders", "order 1", "order 2")

	n, err := s.admin.PurgeDead(ctx, "orders", admin.Bulk{Filter: admin.Filter{Reason: "last of 1 deliveries"}})
	check(err)
	fmt.Println(n, "purged")

	// Output: 2 purged
}

func ExampleAdmin_MoveDead() {
	s := start()
	defer s.stop()
	s.die("orders", "order 1", "order 2")

	n, err := s.admin.MoveDead(ctx, "orders", admin.Bulk{To: "orders-to-look-at"})
	check(err)
	stats, err := s.admin.Stats(ctx, "orders-to-look-at")
	check(err)
	fmt.Println(n, "moved,", stats.Messages, "there")

	// Output: 2 moved, 2 there
}

// Dead letters are kept in a file, deleted, and published again.
func ExampleAdmin_ImportDead() {
	s := start()
	defer s.stop()
	s.die("orders", "order 1", "order 2")

	var file bytes.Buffer
	page, err := s.admin.List(ctx, "orders", admin.Query{State: admin.Dead})
	check(err)
	for _, m := range page.Messages {
		line, err := json.Marshal(m.Letter("orders", redisdelay.DefaultConsumerGroup))
		check(err)
		file.Write(append(line, '\n'))
	}
	_, err = s.admin.PurgeDead(ctx, "orders", admin.Bulk{})
	check(err)

	letters := admin.ReadLetters(file.Bytes())
	done, err := s.admin.ImportDead(ctx, "orders", letters, admin.Import{})
	check(err)
	again, err := s.admin.ImportDead(ctx, "orders", letters, admin.Import{})
	check(err)
	fmt.Println(done.Letters, "imported, then", again.Letters, "and", again.LeftOut, "left out")

	// Output: 2 imported, then 0 and 2 left out
}

// Topic "orders" has a new name. What waits and what is dead moves there.
func ExampleAdmin_Move() {
	s := start()
	defer s.stop()
	s.die("orders", "order 1", "order 2")
	reminder := message.NewMessage("uuid", []byte("order 3"))
	redisdelay.DelayFor(reminder, time.Hour)
	check(s.publisher.Publish("orders", reminder))

	moved, err := s.admin.Move(ctx, "orders", admin.Moving{To: "shop-orders", Create: true})
	check(err)
	fmt.Println(moved.Messages, "moved, groups", moved.Created)
	for _, sentence := range moved.Explain() { // what stays, and why
		fmt.Println(sentence)
	}

	// Output: 3 moved, groups [default]
}

func ExampleAdmin_SetLimit() {
	s := start()
	defer s.stop()
	messages := s.subscribe("orders")

	change, err := s.admin.SetLimit(ctx, "orders", redisdelay.DefaultConsumerGroup, admin.Limit{Rate: redisdelay.Every(time.Hour)})
	check(err)
	fmt.Println("limit:", change.After.Limit)
	s.publish("orders", "order 123", 0)
	s.publish("orders", "order 124", 0)
	msg := <-messages
	msg.Ack()
	fmt.Println("delivered:", string(msg.Payload))
	select {
	case <-messages:
		fmt.Println("delivered")
	case <-time.After(20 * time.Millisecond):
		fmt.Println("the next one waits for an hour")
	}

	// Output:
	// limit: 1/h, burst 1
	// delivered: not paid
	// the next one waits for an hour
}

func ExampleAdmin_History() {
	s := start()
	defer s.stop()
	messages := s.subscribe("orders")
	_, err := s.admin.SetHistory(ctx, "orders", redisdelay.DefaultConsumerGroup, admin.History{Retention: 24 * time.Hour})
	check(err)
	s.publish("orders", "order 4711", 0)
	msg := <-messages
	msg.Ack()

	for { // Redis has the ack soon
		page, err := s.admin.History(ctx, "orders", admin.HistoryFilter{DelayID: "order 4711"})
		check(err)
		if len(page.Ended) > 0 {
			fmt.Println(page.Ended[0].How, "after deliveries:", page.Ended[0].Deliveries)
			break
		}
	}

	// Output:
	// acked after deliveries: 1
}

func ExampleAdmin_SetHistory() {
	s := start()
	defer s.stop()
	s.subscribe("orders")

	change, err := s.admin.SetHistory(ctx, "orders", redisdelay.DefaultConsumerGroup, admin.History{Retention: 24 * time.Hour})
	check(err)
	fmt.Println("before:", change.Before)
	fmt.Println("after:", change.After)

	// Output:
	// before: no history
	// after: 24h0m0s, 10,000 messages, set by an operator
}

func ExampleAdmin_ResetHistory() {
	s := start()
	defer s.stop()
	s.subscribe("orders")

	_, err := s.admin.SetHistory(ctx, "orders", redisdelay.DefaultConsumerGroup, admin.History{Retention: 24 * time.Hour})
	check(err)
	change, err := s.admin.ResetHistory(ctx, "orders", redisdelay.DefaultConsumerGroup)
	check(err)
	fmt.Println("after:", change.After)

	// Output:
	// after: no history
}

func ExampleAdmin_ResetLimit() {
	s := start()
	defer s.stop()
	s.subscribe("orders")

	_, err := s.admin.SetLimit(ctx, "orders", redisdelay.DefaultConsumerGroup, admin.Limit{AtOnce: 5})
	check(err)
	change, err := s.admin.ResetLimit(ctx, "orders", redisdelay.DefaultConsumerGroup)
	check(err)
	fmt.Println("before:", change.Before.Limit)
	fmt.Println("after:", change.After.Limit)

	// Output:
	// before: 5 at once
	// after: no limit
}

func ExampleAdmin_Pause() {
	s := start()
	defer s.stop()
	messages := s.subscribe("orders")

	_, err := s.admin.Pause(ctx, "orders", admin.PauseOptions{})
	check(err)
	s.publish("orders", "order 123", 0)
	select {
	case <-messages:
		fmt.Println("delivered")
	case <-time.After(20 * time.Millisecond):
		fmt.Println("paused")
	}
	_, err = s.admin.Resume(ctx, "orders", admin.ResumeOptions{})
	check(err)
	msg := <-messages
	msg.Ack()
	fmt.Println("delivered:", string(msg.Payload))

	// Output:
	// paused
	// delivered: not paid
}

func ExampleAdmin_Resume() {
	s := start()
	defer s.stop()
	s.register("orders", "billing")

	_, err := s.admin.Pause(ctx, "orders", admin.PauseOptions{})
	check(err)
	for range 2 {
		was, err := s.admin.Resume(ctx, "orders", admin.ResumeOptions{})
		check(err)
		fmt.Println("was paused:", was)
	}

	// Output:
	// was paused: true
	// was paused: false
}

func ExampleInGroup() {
	s := start()
	defer s.stop()
	s.register("orders", "billing")
	s.register("orders", "shipping")

	pause, err := s.admin.Pause(ctx, "orders", admin.PauseOptions{Scope: admin.InGroup("billing"), By: "ann", Why: "the bank is down", For: time.Hour})
	check(err)
	fmt.Println("for", pause.Until.Sub(pause.Since), "by", pause.By)
	stats, err := s.admin.Stats(ctx, "orders")
	check(err)
	for _, g := range stats.Groups {
		fmt.Println(g.Group, "paused:", g.Pause != nil)
	}

	// Output:
	// for 1h0m0s by ann
	// billing paused: true
	// shipping paused: false
}

func ExampleAdmin_Resume_group() {
	s := start()
	defer s.stop()
	s.register("orders", "billing")

	_, err := s.admin.Pause(ctx, "orders", admin.PauseOptions{Scope: admin.InGroup("billing")})
	check(err)
	was, err := s.admin.Resume(ctx, "orders", admin.ResumeOptions{Scope: admin.InGroup("billing")})
	check(err)
	fmt.Println("was paused:", was)

	// Output: was paused: true
}

func ExampleAdmin_GroupsWithoutSubscribers() {
	s := start()
	defer s.stop()
	s.register("orders", "billing")
	messages := s.subscribe("orders") // in group default
	s.publish("orders", "order 123", 0)
	msg := <-messages
	s.server.Advance(time.Hour)

	groups, err := s.admin.GroupsWithoutSubscribers(ctx, "orders", 10*time.Minute)
	check(err)
	msg.Ack()
	for _, g := range groups {
		fmt.Println(g.Group, "has", g.Ready, "ready")
	}

	// Output: billing has 1 ready
}

func ExampleAdmin_DeleteIdleGroups() {
	s := start()
	defer s.stop()
	s.register("orders", "billing")
	s.publish("orders", "order 123", 0)
	s.server.Advance(time.Hour)

	removal, err := s.admin.DeleteIdleGroups(ctx, "orders", admin.IdleOptions{Idle: 10 * time.Minute})
	check(err)
	fmt.Println(removal.Groups, removal.Messages)

	// Output: [billing] 1
}

func ExampleAdmin_DeleteGroup() {
	s := start()
	defer s.stop()
	s.register("orders", "billing")
	s.publish("orders", "order 123", 0)

	for _, dryRun := range []bool{true, false} {
		removal, err := s.admin.DeleteGroup(ctx, "orders", "billing", admin.DeleteOptions{DryRun: dryRun})
		check(err)
		stats, err := s.admin.Stats(ctx, "orders")
		check(err)
		fmt.Println(removal.Messages, "message, groups left:", len(stats.Groups))
	}

	// Output:
	// 1 message, groups left: 1
	// 1 message, groups left: 0
}

func ExampleAdmin_DeleteTopic() {
	s := start()
	defer s.stop()
	s.publish("orders", "order 123", time.Hour)

	removal, err := s.admin.DeleteTopic(ctx, "orders", admin.DeleteOptions{DryRun: true})
	check(err)
	fmt.Println("would remove", removal.Messages)
	_, err = s.admin.DeleteTopic(ctx, "orders", admin.DeleteOptions{})
	check(err)
	_, err = s.admin.Stats(ctx, "orders")
	fmt.Println("gone:", errors.Is(err, admin.ErrNotFound))

	// Output:
	// would remove 1
	// gone: true
}

// figures returns the figures of a topic for graphs and alerts.
func figures(ctx context.Context, a *admin.Admin, topic string) (map[string]float64, error) {
	stats, err := a.Stats(ctx, topic)
	if err != nil {
		return nil, err
	}
	readiness, err := a.Ready(ctx, topic)
	if err != nil {
		return nil, err
	}
	f := map[string]float64{
		"messages":          float64(stats.Messages),
		"lag_seconds":       readiness.Topics[0].Lag.Seconds(),
		"ready_for_seconds": readiness.Topics[0].ReadyFor.Seconds(),
	}
	for _, g := range stats.Groups {
		f["ready."+g.Group] = float64(g.Ready)
		f["dead."+g.Group] = float64(g.Dead)
		f["max_lateness_seconds."+g.Group] = g.MaxLateness.Seconds()
	}
	return f, nil
}

// Figures that a program exports for a topic. The code of figures is also in docs/control.md.
func Example_figures() {
	s := start()
	defer s.stop()
	s.register("orders", "billing")
	s.publish("orders", "order 123", 0)
	s.publish("orders", "order 124", time.Hour)

	f, err := figures(ctx, s.admin, "orders")
	check(err)
	fmt.Println("messages:", f["messages"], "ready for billing:", f["ready.billing"], "dead:", f["dead.billing"])

	// Output: messages: 2 ready for billing: 1 dead: 0
}

// Ready in a health endpoint.
func ExampleAdmin_Ready() {
	s := start()
	defer s.stop()
	s.register("orders", "billing")
	s.publish("orders", "order 123", time.Hour)
	healthy := func() error {
		ctx, end := context.WithTimeout(ctx, 2*time.Second)
		defer end()
		readiness, err := s.admin.Ready(ctx, "orders")
		if err != nil {
			return err
		}
		return readiness.Err(5 * time.Second)
	}

	fmt.Println(healthy())
	s.subscribe("orders")
	for healthy() != nil { // until the subscriber's scheduler has taken over
		time.Sleep(time.Millisecond)
	}
	fmt.Println("ready")

	// Output:
	// not ready: no scheduler serves topic "orders"
	// ready
}

func ExampleAdmin_Diagnose() {
	s := start()
	defer s.stop()
	s.register("orders", "billing")
	_, err := s.admin.Pause(ctx, "orders", admin.PauseOptions{By: "ann", Why: "deploy"})
	check(err)

	d, err := s.admin.Diagnose(ctx, admin.DiagnoseOptions{})
	check(err)
	for _, p := range d.Problems {
		if p.Topic != "" { // not of the server
			fmt.Println(p.Severity, p.Kind, p.Topic, p.Mend)
		}
	}

	// Output: warning paused orders [resume orders]
}

func ExampleAdmin_Ignore() {
	s := start()
	defer s.stop()
	s.register("orders", "billing")
	_, err := s.admin.Pause(ctx, "orders", admin.PauseOptions{By: "ann", Why: "deploy"})
	check(err)

	_, err = s.admin.Ignore(ctx, admin.Ignored{Kind: admin.PausedNow, Topic: "orders", By: "ann", Why: "it is tested"})
	check(err)
	d, err := s.admin.Diagnose(ctx, admin.DiagnoseOptions{})
	check(err)
	for _, p := range d.Problems {
		if p.Ignored != nil {
			fmt.Println(p.Kind, p.Topic, "is ignored by", p.Ignored.By, "because", p.Ignored.Why)
		}
	}

	// Output: paused orders is ignored by ann because it is tested
}

func ExampleAdmin_Unignore() {
	s := start()
	defer s.stop()
	_, err := s.admin.Ignore(ctx, admin.Ignored{Kind: admin.Persistence, By: "ann", Why: "it is a cache"})
	check(err)

	check(s.admin.Unignore(ctx, admin.Ignored{Kind: admin.Persistence}))
	all, err := s.admin.IgnoredProblems(ctx)
	check(err)
	fmt.Println(len(all))

	// Output: 0
}

func ExampleAdmin_IgnoredProblems() {
	s := start()
	defer s.stop()
	_, err := s.admin.Ignore(ctx, admin.Ignored{Kind: admin.Persistence, By: "ann", Why: "it is a cache"})
	check(err)

	all, err := s.admin.IgnoredProblems(ctx)
	check(err)
	for _, i := range all {
		fmt.Println(i.Kind, i.By, i.Why)
	}

	// Output: persistence ann it is a cache
}

func ExampleAdmin_Memory() {
	s := start()
	defer s.stop()
	s.publish("orders", "order 123", time.Hour)

	use, err := s.admin.Memory(ctx, admin.MemoryOptions{})
	check(err)
	for _, m := range use.Topics {
		state, _ := m.Most()
		fmt.Println(m.Topic, state, m.Bytes > 0)
	}

	// Output: orders waiting true
}

func ExampleAdmin_Check() {
	s := start()
	defer s.stop()
	s.publish("orders", "order 123", time.Hour)

	report, err := s.admin.Check(ctx, "orders")
	check(err)
	fmt.Println(report.Messages, "message,", len(report.Violations()), "violations")
	for _, f := range report.Findings { // of the server in this process
		fmt.Println(f)
	}

	// Output:
	// 1 message, 0 violations
	// warning: eviction: the server does not say its maxmemory-policy; it should be noeviction
	// warning: persistence: the server does not say whether it writes an append-only file
}

func ExampleAdmin_Repair() {
	s := start()
	defer s.stop()
	s.register("orders", "billing")
	s.publish("orders", "order 123", time.Hour)
	// A wrong key is removed by hand.
	check(s.server.Client().Del(ctx, "redisdelay:{orders}:pending").Err())

	repaired, err := s.admin.Repair(ctx, "orders")
	check(err)
	for _, m := range repaired.Mended {
		fmt.Println(m.Kind+":", m.Done[0])
	}

	// Output: lost: made it due again, for it was in no state in group "billing"
}

func ExampleAdmin_Record() {
	s := start()
	defer s.stop()

	check(s.admin.Record(ctx, admin.Act{By: "ann", Action: "pause", Topic: "orders", Detail: "deploy"}))
	acts, _, err := s.admin.Acts(ctx, "", 10)
	check(err)
	fmt.Println(acts[0].By, acts[0].Action, acts[0].Topic)

	// Output: ann pause orders
}

func ExampleAdmin_Acts() {
	s := start()
	defer s.stop()

	acts, next, err := s.admin.Acts(ctx, "", 10)
	check(err)
	fmt.Println(len(acts), "acts, more:", next != "")

	// Output: 0 acts, more: false
}

var ctx = context.Background()

// setting is a server with an Admin, for Examples.
type setting struct {
	server     *redisdelaytest.Server
	admin      *admin.Admin
	publisher  *redisdelay.Publisher
	subscriber *redisdelay.Subscriber
}

func start() *setting {
	server, err := redisdelaytest.New(redisdelaytest.Config{})
	check(err)
	a, err := admin.New(admin.Config{Client: server.Client()})
	check(err)
	publisher, err := redisdelay.NewPublisher(redisdelay.PublisherConfig{Client: server.Client()}, nil)
	check(err)
	subscriber, err := redisdelay.NewSubscriber(redisdelay.SubscriberConfig{Client: server.Client(), CloseTimeout: time.Second}, nil)
	check(err)
	return &setting{server, a, publisher, subscriber}
}

func (s *setting) stop() {
	check(s.subscriber.Close())
	check(s.publisher.Close())
	s.server.Close()
}

func (s *setting) publish(topic, delayID string, delay time.Duration) {
	msg := message.NewMessage("uuid of "+delayID, []byte("not paid"))
	redisdelay.SetDelayID(msg, delayID, redisdelay.DelayIDReplace)
	redisdelay.DelayFor(msg, delay)
	check(s.publisher.Publish(topic, msg))
}

// partitioned publishes a message to each partition of a topic.
func (s *setting) partitioned(topic string, n int) {
	names, err := partition.Topics(topic, n)
	check(err)
	for _, name := range names {
		s.publish(name, "delay ID", time.Hour)
	}
}

func (s *setting) subscribe(topic string) <-chan *message.Message {
	messages, err := s.subscriber.Subscribe(ctx, topic)
	check(err)
	return messages
}

func (s *setting) register(topic, group string) {
	subscriber, err := redisdelay.NewSubscriber(redisdelay.SubscriberConfig{Client: s.server.Client(), ConsumerGroup: group}, nil)
	check(err)
	check(subscriber.SubscribeInitialize(topic))
	check(subscriber.Close())
}

// die publishes messages that become dead letters.
func (s *setting) die(topic string, uuids ...string) <-chan *message.Message {
	messages := s.subscribe(topic)
	for _, uuid := range uuids {
		msg := message.NewMessage(uuid, nil)
		redisdelay.SetMaxDeliveries(msg, 1)
		check(s.publisher.Publish(topic, msg))
		(<-messages).Nack()
	}
	for {
		stats, err := s.admin.Stats(ctx, topic)
		check(err)
		if stats.Groups[0].Dead == len(uuids) {
			return messages
		}
		time.Sleep(time.Millisecond)
	}
}

func check(err error) {
	if err != nil {
		panic(err)
	}
}

// recur starts a program that runs the schedule "report" of topic "reports" each year.
func (s *setting) recur() (stop func()) {
	p, err := periodic.New(periodic.Config{Publisher: s.publisher, Poll: 100 * time.Millisecond}, nil)
	check(err)
	check(p.Add(periodic.Schedule{Name: "report", Topic: "reports", Spec: "@yearly",
		Message: func(o periodic.Occurrence) (*message.Message, error) {
			return message.NewMessage("", []byte(o.Schedule)), nil
		}}))
	running, cancel := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() { ended <- p.Run(running) }()
	s.await(1)
	return func() {
		cancel()
		check(<-ended)
	}
}

// await waits until so many occurrences wait.
func (s *setting) await(n int) {
	for len(s.server.Scheduled("reports")) != n {
		time.Sleep(time.Millisecond)
	}
}

func ExampleAdmin_Schedules() {
	s := start()
	defer s.stop()
	defer s.recur()()

	all, err := s.admin.Schedules(ctx, "reports")
	check(err)
	for _, topic := range all {
		check(topic.Err)
		for _, schedule := range topic.Schedules {
			fmt.Println(schedule.Name, schedule.Spec, schedule.Zone, schedule.Next.UTC().Format("01-02 15:04"))
			fmt.Println("published ahead:", schedule.Expected.After(topic.Now))
		}
	}

	// Output:
	// report @yearly UTC 01-01 00:00
	// published ahead: true
}

func ExampleAdmin_PauseSchedule() {
	s := start()
	defer s.stop()
	defer s.recur()()

	pause, takenBack, err := s.admin.PauseSchedule(ctx, "reports", "report", admin.PauseOptions{
		By: "ann@ops", Why: "stock-taking", For: 2 * time.Hour})
	check(err)
	fmt.Println("lasts:", pause.Until.Sub(pause.Since))
	fmt.Println("taken back:", takenBack)

	// Output:
	// lasts: 2h0m0s
	// taken back: 1
}

func ExampleAdmin_ResumeSchedule() {
	s := start()
	defer s.stop()
	defer s.recur()()

	_, _, err := s.admin.PauseSchedule(ctx, "reports", "report", admin.PauseOptions{})
	check(err)
	check(s.admin.ResumeSchedule(ctx, "reports", "report"))
	s.await(1)
	fmt.Println("its next occurrence waits")

	// Output:
	// its next occurrence waits
}

func ExampleAdmin_RunSchedule() {
	s := start()
	defer s.stop()
	defer s.recur()()
	messages := s.subscribe("reports")

	_, err := s.admin.RunSchedule(ctx, "reports", "report")
	check(err)
	msg := <-messages
	msg.Ack()
	fmt.Println(string(msg.Payload))

	// Output:
	// report
}

func ExampleAdmin_RemoveSchedule() {
	s := start()
	defer s.stop()
	defer s.recur()()

	takenBack, err := s.admin.RemoveSchedule(ctx, "reports", "report", admin.DeleteOptions{})
	check(err)
	fmt.Println("taken back:", takenBack)

	// Output:
	// taken back: 1
}
