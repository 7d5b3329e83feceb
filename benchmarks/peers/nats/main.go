// Command nats is NATS JetStream. A message that is published to a subject of its own with a
// schedule goes to the target subject of the same stream when it is due. The stream is a work queue
// on disk, of which acknowledged messages are deleted. Several messages are published
// asynchronously, and the worker is one Consume, as the client's documentation recommends for
// speed. Its MaxAckPending is 10,000 instead of 1,000.
package main

import (
	"context"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/nats-io/nuid"

	"github.com/redisdelay/watermill-redisdelay/benchmarks/peers/driver"
)

const (
	stream = "PEERS"
	waits  = "peers.delayed."
	due    = "peers.due"
	worker = "worker"
)

func main() {
	driver.Main(driver.System{Setup: setup, Produce: produce, Consume: consume})
}

func connect(o driver.Options) (jetstream.JetStream, error) {
	conn, err := nats.Connect("nats://" + o.Addr)
	if err != nil {
		return nil, err
	}
	return jetstream.New(conn)
}

func setup(ctx context.Context, o driver.Options) error {
	js, err := connect(o)
	if err != nil {
		return err
	}
	_, err = js.CreateStream(ctx, jetstream.StreamConfig{
		Name:              stream,
		Subjects:          []string{waits + "*", due},
		Retention:         jetstream.WorkQueuePolicy,
		AllowMsgSchedules: true,
	})
	if err != nil {
		return err
	}
	_, err = js.CreateConsumer(ctx, stream, jetstream.ConsumerConfig{
		Durable:       worker,
		FilterSubject: due,
		AckPolicy:     jetstream.AckExplicitPolicy,
		AckWait:       o.Lease,
		MaxAckPending: 10_000,
	})
	return err
}

func produce(_ context.Context, o driver.Options) (func(context.Context, int, []driver.Message) error, error) {
	js, err := connect(o)
	return func(ctx context.Context, _ int, batch []driver.Message) error {
		if len(batch) == 1 {
			_, err := js.PublishMsg(ctx, scheduled(batch[0]))
			return err
		}
		var acks []jetstream.PubAckFuture
		for _, m := range batch {
			ack, err := js.PublishMsgAsync(scheduled(m))
			if err != nil {
				return err
			}
			acks = append(acks, ack)
		}
		for _, ack := range acks {
			select {
			case <-ack.Ok():
			case err := <-ack.Err():
				return err
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		return nil
	}, err
}

// scheduled sets the header itself, because jetstream.WithScheduleAt keeps whole seconds only.
func scheduled(m driver.Message) *nats.Msg {
	msg := nats.NewMsg(waits + nuid.Next())
	msg.Data = m.Payload
	msg.Header.Set("Nats-Schedule", "@at "+m.Due.UTC().Format(time.RFC3339Nano))
	msg.Header.Set("Nats-Schedule-Target", due)
	return msg
}

func consume(ctx context.Context, o driver.Options, handle func([]byte)) (func() error, error) {
	js, err := connect(o)
	if err != nil {
		return nil, err
	}
	consumer, err := js.Consumer(ctx, stream, worker)
	if err != nil {
		return nil, err
	}
	consuming, err := consumer.Consume(func(msg jetstream.Msg) {
		handle(msg.Data())
		_ = msg.Ack() // a lost ack shows as a message that comes twice
	})
	if err != nil {
		return nil, err
	}
	return func() error {
		consuming.Drain()
		<-consuming.Closed()
		js.Conn().Close()
		return nil
	}, nil
}
