// Package demo makes sample traffic, for trying the dashboard and for its pictures. It has topics
// in good and in bad condition.
package demo

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/redis/go-redis/v9"

	redisdelay "github.com/redisdelay/watermill-redisdelay"
	"github.com/redisdelay/watermill-redisdelay/admin"
	"github.com/redisdelay/watermill-redisdelay/periodic"
)

// traffic is what one program of a small shop does.
type traffic struct {
	ctx       context.Context
	client    redis.UniversalClient
	prefix    string
	publisher *redisdelay.Publisher
	admin     *admin.Admin
	running   sync.WaitGroup
	number    int
}

// Run makes traffic until ctx ends. ready is called when each topic has its first messages. Errors
// come from Redis.
func Run(ctx context.Context, client redis.UniversalClient, prefix string, ready func()) error {
	publisher, err := redisdelay.NewPublisher(redisdelay.PublisherConfig{Client: client, KeyPrefix: prefix}, nil)
	if err != nil {
		return err
	}
	defer func() { _ = publisher.Close() }()
	a, err := admin.New(admin.Config{Client: client, KeyPrefix: prefix})
	if err != nil {
		return err
	}
	ctx, stop := context.WithCancel(ctx)
	t := &traffic{ctx: ctx, client: client, prefix: prefix, publisher: publisher, admin: a}
	defer func() {
		stop()
		t.running.Wait()
	}()
	recurring, err := t.recur()
	if err := errors.Join(err, t.consume(), t.begin()); err != nil {
		return err
	}
	t.running.Go(func() { _ = recurring.Run(ctx) }) // without an error until ctx ends
	if err := t.pauseSchedule(); err != nil {
		return err
	}
	ready()
	for ticks := time.NewTicker(250 * time.Millisecond); ; {
		select {
		case <-ctx.Done():
			ticks.Stop()
			return nil
		case <-ticks.C:
			if err := t.more(); err != nil && ctx.Err() == nil {
				return err
			}
		}
	}
}

// Topics of the shop.
const (
	unpaid    = "unpaid-orders"
	mails     = "mails"
	webhooks  = "webhooks"
	payments  = "payments"
	reports   = "reports"
	reminders = "reminders"
)

var errPermanent = errors.New("a further attempt cannot help")

// consume starts the consumers.
func (t *traffic) consume() error {
	smtp := []string{"smtp: 550 mailbox %d unavailable", "smtp: 550 mailbox %d unavailable", "smtp: 550 mailbox %d unavailable",
		"template order-%d: field \"Name\" is missing", "dial tcp 10.0.0.%d:25: i/o timeout"}
	return errors.Join(
		t.group(unpaid, "billing", 8, func(*message.Message) error { return nil }),
		t.group(mails, "sender", 16, func(msg *message.Message) error {
			if roll := rand.IntN(100); roll < 6 {
				err := fmt.Errorf(smtp[roll%len(smtp)], 1+rand.IntN(250))
				if roll < 4 {
					redisdelay.DeadOnNack(msg, errPermanent)
				}
				return err
			}
			return t.sleep(20 * time.Millisecond)
		}),
		t.group(webhooks, "caller", 4, func(*message.Message) error {
			if rand.IntN(4) == 0 {
				return errors.New("POST https://shop.example/hook: 503 Service Unavailable")
			}
			return t.sleep(700 * time.Millisecond)
		}),
		t.group(payments, "settlement", 4, func(*message.Message) error { return nil }),
		t.group(reminders, "app", 4, func(*message.Message) error { return nil }),
		t.register(reports, "nightly"),
	)
}

// recur returns the recurring schedules of the shop.
func (t *traffic) recur() (*periodic.Periodic, error) {
	p, err := periodic.New(periodic.Config{Publisher: t.publisher}, nil)
	if err != nil {
		return nil, err
	}
	berlin, err := time.LoadLocation("Europe/Berlin")
	if err != nil {
		berlin = time.UTC // the machine knows no zones
	}
	for _, s := range []periodic.Schedule{
		{Name: "daily-report", Topic: reports, Spec: "30 6 * * 1-5", Location: berlin, Jitter: 10 * time.Minute},
		{Name: "month-end", Topic: reports, Spec: "0 22 28 * *", Location: berlin, Misfire: periodic.MisfireAll},
		{Name: "clean-up", Topic: reminders, Spec: "@every 6h"},
		{Name: "newsletter", Topic: mails, Spec: "0 9 * * 2,5", Location: berlin},
	} {
		s.Message = func(periodic.Occurrence) (*message.Message, error) {
			msg := message.NewMessage(watermill.NewUUID(), []byte(`{"recurring":true}`))
			msg.Metadata.Set("kind", s.Name)
			return msg, nil
		}
		if err := p.Add(s); err != nil {
			return nil, err
		}
	}
	return p, nil
}

// pauseSchedule pauses one schedule as soon as it is in Redis.
func (t *traffic) pauseSchedule() error {
	for {
		_, _, err := t.admin.PauseSchedule(t.ctx, mails, "newsletter", admin.PauseOptions{By: "bob", Why: "a typo in the newsletter"})
		if err == nil {
			return t.admin.Record(t.ctx, admin.Act{By: "bob", Action: "pause-schedule", Topic: mails, Schedule: "newsletter", Detail: "until resume: a typo in the newsletter; 1 waiting occurrence taken back"})
		}
		if !errors.Is(err, admin.ErrNotFound) {
			return err
		}
		if err := t.sleep(20 * time.Millisecond); err != nil {
			return nil // the program ends
		}
	}
}

// begin publishes the first messages.
func (t *traffic) begin() error {
	var errs []error
	for i := range 400 {
		errs = append(errs, t.publish(reminders, time.Duration(i*i)*9*time.Second+time.Minute, ""))
	}
	for i := range 120 {
		errs = append(errs, t.publish(unpaid, time.Duration(i)*7*time.Second, fmt.Sprintf("order %d", 1000+i)))
		errs = append(errs, t.publish(mails, 0, ""))
	}
	for range 40 {
		errs = append(errs, t.publish(reports, 0, ""), t.publish(payments, time.Duration(rand.IntN(3600))*time.Second, ""))
	}
	_, err := t.admin.Pause(t.ctx, payments, admin.PauseOptions{By: "ann", Why: "the bank changes its certificates", For: 2 * time.Hour})
	errs = append(errs, err, t.admin.Record(t.ctx, admin.Act{By: "ann", Action: "pause", Topic: payments, Detail: "the bank changes its certificates"}))
	return errors.Join(errs...)
}

// more publishes what comes in a moment.
func (t *traffic) more() error {
	t.number++
	var errs []error
	for range 1 + rand.IntN(8) {
		errs = append(errs, t.publish(mails, time.Duration(rand.IntN(5000))*time.Millisecond, ""))
	}
	errs = append(errs, t.publish(webhooks, time.Duration(rand.IntN(3000))*time.Millisecond, ""))
	if t.number%4 == 0 {
		errs = append(errs, t.publish(unpaid, 15*time.Minute, fmt.Sprintf("order %d", 2000+t.number/4)),
			t.publish(payments, time.Duration(rand.IntN(60))*time.Second, ""))
	}
	if t.number%40 == 0 {
		errs = append(errs, t.publish(reports, 0, ""), t.publish(reminders, time.Duration(rand.IntN(7*24))*time.Hour, ""))
	}
	return errors.Join(errs...)
}

func (t *traffic) publish(topic string, delay time.Duration, name string) error {
	order := 1000 + rand.IntN(9000)
	msg := message.NewMessage(watermill.NewUUID(), fmt.Appendf(nil,
		`{"order":%d,"customer":{"name":"Customer %d","password":"hunter2"},"total":"%d.90 EUR","lines":[{"sku":"TEA-%d","count":%d}]}`,
		order, order%97, 10+order%90, order%40, 1+order%5))
	msg.Metadata.Set("kind", topic)
	msg.Metadata.Set("trace_id", fmt.Sprintf("%016x", rand.Uint64()))
	msg.Metadata.Set("authorization", "Bearer secret")
	redisdelay.DelayFor(msg, delay)
	if name != "" {
		redisdelay.SetDelayID(msg, name, redisdelay.DelayIDReplace)
	}
	return t.publisher.Publish(topic, msg)
}

// register makes a group that nobody reads.
func (t *traffic) register(topic, group string) error {
	s, err := t.subscriber(group, 1)
	if err != nil {
		return err
	}
	return errors.Join(s.SubscribeInitialize(topic), s.Close())
}

func (t *traffic) subscriber(group string, most int) (*redisdelay.Subscriber, error) {
	return redisdelay.NewSubscriber(redisdelay.SubscriberConfig{Client: t.client, KeyPrefix: t.prefix, ConsumerGroup: group, MaxInFlight: most,
		MaxDeliveries: 4, CloseTimeout: time.Second, Backoff: func(n int) time.Duration { return time.Duration(n*n) * 5 * time.Second }}, nil)
}

// group handles the messages of a topic.
func (t *traffic) group(topic, group string, most int, handle func(*message.Message) error) error {
	s, err := t.subscriber(group, most)
	if err != nil {
		return err
	}
	messages, err := s.Subscribe(t.ctx, topic)
	if err != nil {
		return errors.Join(err, s.Close())
	}
	kept := redisdelay.KeepError(func(msg *message.Message) ([]*message.Message, error) { return nil, handle(msg) })
	t.running.Go(func() {
		var handlers sync.WaitGroup
		for msg := range messages {
			handlers.Go(func() {
				if _, err := kept(msg); err != nil {
					msg.Nack()
					return
				}
				msg.Ack()
			})
		}
		handlers.Wait()
		_ = s.Close()
	})
	return nil
}

// sleep takes about as long as some work.
func (t *traffic) sleep(d time.Duration) error {
	select {
	case <-time.After(d/2 + rand.N(d)):
		return nil
	case <-t.ctx.Done():
		return t.ctx.Err()
	}
}
