package wake

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/redisdelay/watermill-redisdelay/internal/queue"
)

// rescan is the interval at which WatchTopics reads the registry again, in case an announcement was
// lost.
const rescan = 30 * time.Second

// WatchTopics calls found for every topic of the registry, and for each topic that enters it later,
// until the context ends. It may call found more than once for a topic. The argument announced
// tells whether the topic was announced just now. If the registry has lost a topic that exists and
// that WatchTopics knows, it enters the topic again.
//
// It calls read after each try to read the registry, with the error or nil. After an error it tries
// again within a second, or, where the user may not read, at the next rescan. It also calls read
// with ErrNotHeard if it may not listen for announcements, and with ErrNotEntered if it could not
// enter a topic again.
func WatchTopics(ctx context.Context, client *queue.Client, prefix string, found func(topic string, announced bool), read func(error)) {
	pubsub, err := subscribe(ctx, client, nil, queue.NewTopics(prefix))
	if pubsub == nil || errors.Is(err, queue.ErrForbidden) {
		read(fmt.Errorf("%w: %w", ErrNotHeard, err))
	}
	listener := newListener(client, queue.NewTopics(prefix), true)
	defer listener.end()
	incoming := listener.listen(ctx, pubsub)
	timer := time.NewTimer(0)
	defer timer.Stop()
	known := map[string]bool{}
	look := func() {
		timer.Reset(rescan)
		missing := maps.Clone(known)
		err := queue.Topics(ctx, client, prefix, func(topic string) {
			delete(missing, topic)
			known[topic] = true
			found(topic, false)
		})
		if err == nil {
			err = enterAgain(ctx, client, prefix, missing, known)
		} else if !errors.Is(err, queue.ErrForbidden) {
			timer.Reset(time.Second)
		}
		if ctx.Err() == nil {
			read(err)
		}
	}
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
			look()
		case event, open := <-incoming:
			switch event := event.(type) {
			case *redis.Subscription:
				look()
			case *redis.Message:
				if queue.CheckTopic(event.Payload) == nil { // anyone may publish
					known[event.Payload] = true
					found(event.Payload, true)
				}
			}
			if !open { // the client was closed; the timer reports it
				incoming = nil
			}
		}
	}
}

// ErrNotHeard means that WatchTopics receives no announcements, and finds new topics only when it
// reads the registry again.
var ErrNotHeard = errors.New("new topics are not heard of")

// RegistryNews chooses the log lines about the registry, so that an outage is logged once and not
// every second. The zero value is ready to use.
type RegistryNews struct{ before error }

// Of returns the log line for an argument of WatchTopics's read, or "" if it is no news.
func (n *RegistryNews) Of(err error) string {
	if errors.Is(err, ErrNotHeard) { // the registry may still be read
		return "Cannot listen for new topics, looking for them twice a minute"
	}
	before := n.before
	n.before = err
	switch {
	case err == nil && before == nil, err != nil && before != nil && sameTrouble(err, before):
		return ""
	case err == nil:
		return "The registry of topics is read again"
	case errors.Is(err, ErrNotEntered):
		return "Cannot mend the registry of topics, trying again"
	default:
		return "Cannot read the registry of topics, trying again"
	}
}

// sameTrouble tells whether two errors in a row are one outage.
func sameTrouble(err, before error) bool {
	if err.Error() == before.Error() {
		return true
	}
	return queue.Unreachable(err) && queue.Unreachable(before) && errors.Is(err, ErrNotEntered) == errors.Is(before, ErrNotEntered)
}

// ErrNotEntered means that a topic is missing in the registry and could not be entered again yet.
var ErrNotEntered = errors.New("a topic is missing in the registry")

// enterAgain enters the missing topics that exist in the registry, and removes the others from
// known. It stops at the first error, because other topics of that node would fail, too, while
// announcements wait. The next rescan goes on.
func enterAgain(ctx context.Context, client *queue.Client, prefix string, missing, known map[string]bool) error {
	for topic := range missing {
		there, err := queue.NewTopic(client, prefix, topic).Relist(ctx)
		if err != nil {
			return fmt.Errorf("%w: %q: %w", ErrNotEntered, topic, err)
		}
		if !there {
			delete(known, topic)
		}
	}
	return nil
}
