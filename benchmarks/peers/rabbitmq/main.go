// Command rabbitmq delays by queues whose messages live for a fixed time and are then dead-lettered
// to the queue of the worker. A time to live for each message would not do, because RabbitMQ looks
// at the head of a queue only. So there is one queue for each 10 ms of delay, and a delay is
// rounded up. Queues are durable, messages persistent and publishing is confirmed. The worker
// prefetches 300, since 100 to 300 is what the documentation recommends.
package main

import (
	"context"
	"errors"
	"strconv"
	"time"

	"github.com/rabbitmq/amqp091-go"

	"github.com/redisdelay/watermill-redisdelay/benchmarks/peers/driver"
)

const (
	work = "peers"
	step = 10 * time.Millisecond
)

func main() {
	driver.Main(driver.System{Setup: setup, Produce: produce, Consume: consume})
}

func connect(o driver.Options) (*amqp091.Connection, error) {
	return amqp091.Dial("amqp://guest:guest@" + o.Addr + "/")
}

// waiting names the queue in which messages wait for a delay.
func waiting(delay time.Duration) string {
	return work + "-" + strconv.FormatInt(steps(delay)*step.Milliseconds(), 10)
}

func steps(delay time.Duration) int64 { return int64((delay + step - 1) / step) }

func setup(_ context.Context, o driver.Options) error {
	conn, err := connect(o)
	if err != nil {
		return err
	}
	defer conn.Close()
	ch, err := conn.Channel()
	if err != nil {
		return err
	}
	if _, err := ch.QueueDeclare(work, true, false, false, false, nil); err != nil {
		return err
	}
	for delay := step; delay <= o.MaxDelay; delay += step {
		_, err := ch.QueueDeclare(waiting(delay), true, false, false, false, amqp091.Table{
			"x-message-ttl":             delay.Milliseconds(),
			"x-dead-letter-exchange":    "",
			"x-dead-letter-routing-key": work,
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// produce gives each producer a channel, of one connection.
func produce(_ context.Context, o driver.Options) (func(context.Context, int, []driver.Message) error, error) {
	conn, err := connect(o)
	if err != nil {
		return nil, err
	}
	channels := make([]*amqp091.Channel, o.Producers)
	for i := range channels {
		if channels[i], err = conn.Channel(); err != nil {
			return nil, err
		}
		if err := channels[i].Confirm(false); err != nil {
			return nil, err
		}
	}
	return func(ctx context.Context, n int, batch []driver.Message) error {
		var confirms []*amqp091.DeferredConfirmation
		for _, m := range batch {
			confirm, err := channels[n].PublishWithDeferredConfirmWithContext(ctx, "", waiting(m.Delay), true, false,
				amqp091.Publishing{DeliveryMode: amqp091.Persistent, Body: m.Payload})
			if err != nil {
				return err
			}
			confirms = append(confirms, confirm)
		}
		for _, confirm := range confirms {
			if ok, err := confirm.WaitContext(ctx); err != nil || !ok {
				return errors.Join(err, errors.New("the server did not confirm a message"))
			}
		}
		return nil
	}, nil
}

func consume(_ context.Context, o driver.Options, handle func([]byte)) (func() error, error) {
	conn, err := connect(o)
	if err != nil {
		return nil, err
	}
	ch, err := conn.Channel()
	if err != nil {
		return nil, err
	}
	if err := ch.Qos(300, 0, false); err != nil {
		return nil, err
	}
	deliveries, err := ch.Consume(work, "", false, false, false, false, nil)
	if err != nil {
		return nil, err
	}
	go func() {
		for d := range deliveries {
			handle(d.Body)
			_ = d.Ack(false) // a lost ack shows as a message that comes twice
		}
	}()
	return conn.Close, nil
}
