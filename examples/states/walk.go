package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/redis/go-redis/v9"

	redisdelay "github.com/redisdelay/watermill-redisdelay"
)

// walk has the data that the steps share.
type walk struct {
	ctx    context.Context
	addr   string
	prefix string
	client *redis.Client
	cli    *redis.Conn // one connection, like redis-cli
}

// key returns a key of the topic.
func (w *walk) key(name string) string { return w.prefix + ":{orders}:" + name }

func (w *walk) title(text string) { fmt.Printf("\n# %s\n", text) }

// show runs a command and prints it with its reply.
func (w *walk) show(command ...any) {
	fmt.Print(">")
	for _, word := range command {
		fmt.Printf(" %v", word)
	}
	fmt.Println()
	printReply(w.cli.Do(w.ctx, command...).Result())
}

// showLike shows the topic's key that matches a pattern, because the end of its name is random.
func (w *walk) showLike(command, pattern string) {
	keys, err := w.client.Keys(w.ctx, w.key(pattern)).Result()
	if err != nil || len(keys) == 0 {
		printReply(keys, err)
		return
	}
	w.show(command, keys[0])
}

func (w *walk) showScheduler() { w.show("HMGET", w.key("scheduler"), "next", "holder", "standby") }

// printReply prints a reply like redis-cli.
func printReply(reply any, err error) {
	switch reply := reply.(type) {
	case nil:
		if err != nil && !errors.Is(err, redis.Nil) {
			fmt.Println("(error)", err)
			return
		}
		fmt.Println("(nil)")
	case int64:
		fmt.Println("(integer)", reply)
	case string:
		if reply == "OK" || reply == "QUEUED" {
			fmt.Println(reply)
			return
		}
		fmt.Printf("%q\n", reply)
	case []any:
		if len(reply) == 0 {
			fmt.Println("(empty array)")
		}
		for i, part := range reply {
			fmt.Printf("%d) ", i+1)
			printReply(part, nil)
		}
	default:
		fmt.Println(reply, err)
	}
}

// subscriber returns a subscriber of the group "billing". Its short lease and zero backoff keep the
// program short.
func (w *walk) subscriber(client redis.UniversalClient) (*redisdelay.Subscriber, error) {
	return redisdelay.NewSubscriber(redisdelay.SubscriberConfig{
		Client:         client,
		KeyPrefix:      w.prefix,
		Unmarshaler:    redisdelay.JSONMarshaler{},
		ConsumerGroup:  "billing",
		TakeoverWindow: -1, // else a window would hold the message, too
		LeaseDuration:  300 * time.Millisecond,
		Backoff:        func(int) time.Duration { return 0 },
		CloseTimeout:   100 * time.Millisecond,
	}, nil)
}

// consume subscribes while step runs.
func (w *walk) consume(step func(<-chan *message.Message) error) error {
	subscriber, err := w.subscriber(w.client)
	if err != nil {
		return err
	}
	messages, err := subscriber.Subscribe(w.ctx, "orders")
	if err != nil {
		return err
	}
	return errors.Join(step(messages), subscriber.Close())
}

func receive(ctx context.Context, messages <-chan *message.Message) (*message.Message, error) {
	select {
	case msg, open := <-messages:
		if !open {
			return nil, errors.New("the subscription has ended")
		}
		return msg, nil
	case <-ctx.Done():
		return nil, fmt.Errorf("no message came: %w", ctx.Err())
	}
}

// await waits until Redis answers a command with a number.
func (w *walk) await(want int, command ...any) error {
	for {
		got, err := w.client.Do(w.ctx, command...).Int()
		if err != nil || got == want {
			return err
		}
		select {
		case <-time.After(2 * time.Millisecond):
		case <-w.ctx.Done():
			return fmt.Errorf("%v does not get to %d: %w", command, want, w.ctx.Err())
		}
	}
}

// wantNoKeys returns an error if there are keys under the prefix, because all are deleted at the
// end.
func (w *walk) wantNoKeys() error {
	keys := w.client.Scan(w.ctx, 0, w.prefix+":*", 1000).Iterator()
	if keys.Next(w.ctx) {
		return fmt.Errorf("there is a key %q; delete what begins with %q, or choose another -prefix", keys.Val(), w.prefix+":")
	}
	return keys.Err()
}

func (w *walk) removeKeys() error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(w.ctx), 5*time.Second)
	defer cancel()
	keys := w.client.Scan(ctx, 0, w.prefix+":*", 1000).Iterator()
	for keys.Next(ctx) {
		if err := w.client.Del(ctx, keys.Val()).Err(); err != nil {
			return err
		}
	}
	return keys.Err()
}
