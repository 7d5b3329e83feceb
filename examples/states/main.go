// States moves a message through every state, and shows the data in Redis after each step, like
// redis-cli. docs/redis-keys.md explains the output.
//
//	go run ./examples/states
//
// It uses a Redis inside this process, or the one at REDIS_ADDR. There it needs a prefix without
// keys, and deletes its keys at the end.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	redisdelay "github.com/redisdelay/watermill-redisdelay"
	"github.com/redisdelay/watermill-redisdelay/scheduler"
)

func main() {
	prefix := flag.String("prefix", "states", "what the keys begin with; there must be no such keys")
	flag.Parse()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if err := run(ctx, os.Getenv("REDIS_ADDR"), *prefix); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(ctx context.Context, addr, prefix string) error {
	if addr == "" {
		embedded, err := miniredis.Run()
		if err != nil {
			return err
		}
		defer embedded.Close()
		addr = embedded.Addr()
	}
	client := redis.NewClient(&redis.Options{Addr: addr})
	defer client.Close()
	cli := redis.NewClient(&redis.Options{Addr: addr, Protocol: 2})
	defer cli.Close()
	w := &walk{ctx: ctx, addr: addr, prefix: prefix, client: client, cli: cli.Conn()}
	defer w.cli.Close()
	if err := w.wantNoKeys(); err != nil {
		return err
	}
	return errors.Join(w.allSteps(), w.removeKeys())
}

func (w *walk) allSteps() error {
	for _, step := range []func() error{
		w.register, w.publish, w.promote, w.crash, w.takeBack, w.nack, w.die, w.requeue,
	} {
		if err := step(); err != nil {
			return err
		}
	}
	return nil
}

func (w *walk) register() error {
	w.title("A consumer group exists")
	billing, err := w.subscriber(w.client)
	if err != nil {
		return err
	}
	defer billing.Close()
	if err := billing.SubscribeInitialize("orders"); err != nil {
		return err
	}
	w.show("SMEMBERS", w.prefix+":topics")
	w.show("HMGET", w.key("meta"), "layout", "groups")
	w.show("HGETALL", w.key("groups"))
	return nil
}

func (w *walk) publish() error {
	w.title("A message is published with a delay: it is waiting")
	publisher, err := redisdelay.NewPublisher(redisdelay.PublisherConfig{
		Client: w.client, KeyPrefix: w.prefix, Marshaler: redisdelay.JSONMarshaler{},
	}, nil)
	if err != nil {
		return err
	}
	defer publisher.Close()
	msg := message.NewMessage("1", []byte("not paid"))
	msg.Metadata.Set("delay", "200ms")
	msg.Metadata.Set("max_deliveries", "3")
	if err := publisher.Publish("orders", msg); err != nil {
		return err
	}
	w.show("ZRANGE", w.key("pending"), "0", "-1", "WITHSCORES")
	w.show("HGETALL", w.key("messages"))
	w.show("HGETALL", w.key("options"))
	w.showScheduler()
	w.showLike("GET", "publisher:*")
	return nil
}

func (w *walk) promote() error {
	w.title("A scheduler runs, and the message is due: it is ready")
	stop, err := w.scheduler()
	if err != nil {
		return err
	}
	defer stop()
	if err := w.await(1, "LLEN", w.key("ready:billing")); err != nil {
		return err
	}
	w.show("ZCARD", w.key("pending"))
	w.show("LRANGE", w.key("ready:billing"), "0", "-1")
	w.showScheduler()
	return nil
}

func (w *walk) crash() error {
	w.title("A subscriber claims it: it is in hand, under a lease")
	client := redis.NewClient(&redis.Options{Addr: w.addr})
	billing, err := w.subscriber(client)
	if err != nil {
		return err
	}
	defer billing.Close()
	messages, err := billing.Subscribe(w.ctx, "orders")
	if err != nil {
		return err
	}
	if _, err := receive(w.ctx, messages); err != nil {
		return err
	}
	w.show("LLEN", w.key("ready:billing"))
	w.show("ZRANGE", w.key("unack:billing"), "0", "-1", "WITHSCORES")
	w.show("HGETALL", w.key("leases:billing"))
	if err := w.await(1, "HEXISTS", w.key("scheduler"), "holder"); err != nil {
		return err
	}
	w.showScheduler()
	return client.Close() // the subscriber can no longer extend the lease, as after a crash
}

func (w *walk) takeBack() error {
	w.title("The lease runs out: the message is ready again, and a suspect")
	stop, err := w.scheduler()
	if err != nil {
		return err
	}
	defer stop()
	if err := w.await(1, "LLEN", w.key("ready:billing")); err != nil {
		return err
	}
	w.show("LRANGE", w.key("ready:billing"), "0", "-1")
	w.show("HGETALL", w.key("deliveries:billing"))
	return nil
}

func (w *walk) nack() error {
	w.title("It is delivered and nacked with a delay: it is retrying")
	return w.consume(func(messages <-chan *message.Message) error {
		msg, err := receive(w.ctx, messages)
		if err != nil {
			return err
		}
		redisdelay.DelayFor(msg, 200*time.Millisecond)
		msg.Nack()
		if err := w.await(1, "ZCARD", w.key("retry:billing")); err != nil {
			return err
		}
		w.show("ZCARD", w.key("unack:billing"))
		w.show("ZRANGE", w.key("retry:billing"), "0", "-1", "WITHSCORES")
		w.show("HGETALL", w.key("deliveries:billing"))
		return nil
	})
}

func (w *walk) die() error {
	w.title("It is nacked until no deliveries are left: it is dead")
	return w.consume(func(messages <-chan *message.Message) error {
		for range 2 {
			msg, err := receive(w.ctx, messages)
			if err != nil {
				return err
			}
			msg.Nack()
		}
		if err := w.await(1, "ZCARD", w.key("dead:billing")); err != nil {
			return err
		}
		w.show("ZRANGE", w.key("dead:billing"), "0", "-1", "WITHSCORES")
		w.show("HGETALL", w.key("deliveries:billing"))
		w.show("HGETALL", w.key("messages"))
		return nil
	})
}

func (w *walk) requeue() error {
	w.title("It is put into retry by hand, delivered and acked: it is gone")
	id := w.client.ZRange(w.ctx, w.key("dead:billing"), 0, 0).Val()[0]
	now := w.client.Time(w.ctx).Val().UnixMilli()
	w.show("MULTI")
	w.show("ZREM", w.key("dead:billing"), id)
	w.show("HDEL", w.key("deliveries:billing"), id)
	w.show("ZADD", w.key("retry:billing"), fmt.Sprint(now), id)
	w.show("EXEC")
	return w.consume(func(messages <-chan *message.Message) error {
		msg, err := receive(w.ctx, messages)
		if err != nil {
			return err
		}
		msg.Ack()
		if err := w.await(0, "HLEN", w.key("messages")); err != nil {
			return err
		}
		w.show("EXISTS", w.key("messages"), w.key("options"), w.key("pending"), w.key("ready:billing"),
			w.key("unack:billing"), w.key("leases:billing"), w.key("retry:billing"),
			w.key("deliveries:billing"), w.key("dead:billing"))
		return nil
	})
}

// scheduler runs a separate scheduler until stop is called.
func (w *walk) scheduler() (stop func(), err error) {
	sched, err := scheduler.New(scheduler.Config{Client: w.client, KeyPrefix: w.prefix}, nil)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(w.ctx)
	ended := make(chan error, 1)
	go func() { ended <- sched.Run(ctx) }()
	return func() {
		cancel()
		<-ended
	}, nil
}
