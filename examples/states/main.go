// States takes a message through every state, and shows after each step what is in Redis, as
// redis-cli would. docs/redis-keys.md explains it.
//
//	go run ./examples/states
//
// It uses a Redis inside this process, or the one at REDIS_ADDR, where it deletes the keys under its
// prefix before and after.
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
	prefix := flag.String("prefix", "states", "what the keys begin with; all such keys are deleted")
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
	s := &session{ctx: ctx, addr: addr, prefix: prefix, client: client, cli: cli.Conn()}
	defer s.cli.Close()
	if err := s.removeKeys(); err != nil {
		return err
	}
	return errors.Join(s.allSteps(), s.removeKeys())
}

func (s *session) allSteps() error {
	for _, step := range []func() error{
		s.register, s.publish, s.promote, s.crash, s.takeBack, s.nack, s.die, s.requeue,
	} {
		if err := step(); err != nil {
			return err
		}
	}
	return nil
}

func (s *session) register() error {
	s.title("A consumer group exists")
	billing, err := s.subscriber(s.client)
	if err != nil {
		return err
	}
	defer billing.Close()
	if err := billing.SubscribeInitialize("orders"); err != nil {
		return err
	}
	s.show("SMEMBERS", s.prefix+":topics")
	s.show("HMGET", s.key("meta"), "layout", "groups")
	s.show("HGETALL", s.key("groups"))
	return nil
}

func (s *session) publish() error {
	s.title("A message is published with a delay: it is pending")
	publisher, err := redisdelay.NewPublisher(redisdelay.PublisherConfig{
		Client: s.client, KeyPrefix: s.prefix, Marshaler: redisdelay.JSONMarshaler{},
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
	s.show("ZRANGE", s.key("pending"), "0", "-1", "WITHSCORES")
	s.show("HGETALL", s.key("messages"))
	s.show("HGETALL", s.key("options"))
	s.showScheduler()
	s.showLike("GET", "publisher:*")
	return nil
}

func (s *session) promote() error {
	s.title("A scheduler runs, and the message is due: it is ready")
	stop, err := s.scheduler()
	if err != nil {
		return err
	}
	defer stop()
	if err := s.await(1, "LLEN", s.key("ready:billing")); err != nil {
		return err
	}
	s.show("ZCARD", s.key("pending"))
	s.show("LRANGE", s.key("ready:billing"), "0", "-1")
	s.showScheduler()
	return nil
}

func (s *session) crash() error {
	s.title("A subscriber claims it: it is in unack, under a lease")
	client := redis.NewClient(&redis.Options{Addr: s.addr})
	billing, err := s.subscriber(client)
	if err != nil {
		return err
	}
	defer billing.Close()
	messages, err := billing.Subscribe(s.ctx, "orders")
	if err != nil {
		return err
	}
	if _, err := receive(s.ctx, messages); err != nil {
		return err
	}
	s.show("LLEN", s.key("ready:billing"))
	s.show("ZRANGE", s.key("unack:billing"), "0", "-1", "WITHSCORES")
	s.show("HGETALL", s.key("leases:billing"))
	if err := s.await(1, "HEXISTS", s.key("scheduler"), "holder"); err != nil {
		return err
	}
	s.showScheduler()
	return client.Close() // the subscriber can no longer extend the lease: as if its process had died
}

func (s *session) takeBack() error {
	s.title("The lease runs out: the message is ready again, and a suspect")
	stop, err := s.scheduler()
	if err != nil {
		return err
	}
	defer stop()
	if err := s.await(1, "LLEN", s.key("ready:billing")); err != nil {
		return err
	}
	s.show("LRANGE", s.key("ready:billing"), "0", "-1")
	s.show("HGETALL", s.key("deliveries:billing"))
	return nil
}

func (s *session) nack() error {
	s.title("It is delivered and nacked with a delay: it is in retry")
	return s.consume(func(messages <-chan *message.Message) error {
		msg, err := receive(s.ctx, messages)
		if err != nil {
			return err
		}
		redisdelay.DelayFor(msg, 200*time.Millisecond)
		msg.Nack()
		if err := s.await(1, "ZCARD", s.key("retry:billing")); err != nil {
			return err
		}
		s.show("ZCARD", s.key("unack:billing"))
		s.show("ZRANGE", s.key("retry:billing"), "0", "-1", "WITHSCORES")
		s.show("HGETALL", s.key("deliveries:billing"))
		return nil
	})
}

func (s *session) die() error {
	s.title("It is nacked until no deliveries are left: it is dead")
	return s.consume(func(messages <-chan *message.Message) error {
		for range 2 {
			msg, err := receive(s.ctx, messages)
			if err != nil {
				return err
			}
			msg.Nack()
		}
		if err := s.await(1, "ZCARD", s.key("dead:billing")); err != nil {
			return err
		}
		s.show("ZRANGE", s.key("dead:billing"), "0", "-1", "WITHSCORES")
		s.show("HGETALL", s.key("deliveries:billing"))
		s.show("HGETALL", s.key("messages"))
		return nil
	})
}

func (s *session) requeue() error {
	s.title("It is put into retry by hand, delivered and acked: it is gone")
	id := s.client.ZRange(s.ctx, s.key("dead:billing"), 0, 0).Val()[0]
	now := s.client.Time(s.ctx).Val().UnixMilli()
	s.show("MULTI")
	s.show("ZREM", s.key("dead:billing"), id)
	s.show("HDEL", s.key("deliveries:billing"), id)
	s.show("ZADD", s.key("retry:billing"), fmt.Sprint(now), id)
	s.show("EXEC")
	return s.consume(func(messages <-chan *message.Message) error {
		msg, err := receive(s.ctx, messages)
		if err != nil {
			return err
		}
		msg.Ack()
		if err := s.await(0, "HLEN", s.key("messages")); err != nil {
			return err
		}
		s.show("EXISTS", s.key("messages"), s.key("options"), s.key("pending"), s.key("ready:billing"),
			s.key("unack:billing"), s.key("leases:billing"), s.key("retry:billing"),
			s.key("deliveries:billing"), s.key("dead:billing"))
		return nil
	})
}

// scheduler runs a scheduler of its own until stop is called.
func (s *session) scheduler() (stop func(), err error) {
	sched, err := scheduler.New(scheduler.Config{Client: s.client, KeyPrefix: s.prefix}, nil)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(s.ctx)
	ended := make(chan error, 1)
	go func() { ended <- sched.Run(ctx) }()
	return func() {
		cancel()
		<-ended
	}, nil
}
