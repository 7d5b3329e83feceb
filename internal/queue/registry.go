package queue

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"time"

	"github.com/redis/go-redis/v9"
)

// Listed tells whether the topic is in the registry.
func (t *Topic) Listed(ctx context.Context) (bool, error) {
	listed, err := t.client.SIsMember(ctx, Registry(t.prefix), t.Name).Result()
	return listed, forbiddenTo("look for the topic in the registry", "sismember", err)
}

// enroll enters the topic in the registry, and announces it if it is new there.
func (t *Topic) enroll(ctx context.Context) error {
	// A server at its memory limit refuses SADD even where there is nothing to add.
	known, err := t.Listed(ctx)
	if err != nil || known {
		return err
	}
	if err := t.client.SAdd(ctx, Registry(t.prefix), t.Name).Err(); err != nil {
		return forbiddenTo("enter the topic in the registry", "sadd", err)
	}
	// Announced even if another has just added it, who may have died since.
	err = t.client.Publish(ctx, NewTopics(t.prefix), t.Name).Err()
	return forbiddenTo(fmt.Sprintf("announce the topic on channel %q", NewTopics(t.prefix)), "publish", err)
}

// Relist enters the topic in the registry if it is there, and is missing in it: in a Cluster the registry is on a node of its
// own, whose failover may forget what was just entered. It tells whether the topic is there.
func (t *Topic) Relist(ctx context.Context) (there bool, err error) {
	if there, err = t.exists(ctx); err != nil || !there {
		return false, err
	}
	if err := t.enroll(ctx); err != nil {
		return false, err
	}
	if there, err = t.exists(ctx); err != nil || there { // else it was deleted meanwhile
		return there, err
	}
	return false, t.delist(ctx)
}

// delist takes a topic that was deleted out of the registry.
func (t *Topic) delist(ctx context.Context) error {
	if err := t.unlist(ctx, t.Name); err != nil {
		return err
	}
	// Somebody who used it meanwhile has made it anew, and may think that it is in the registry.
	if there, err := t.exists(ctx); err != nil || !there {
		return err
	}
	return t.enroll(ctx)
}

// exists asks the server, whatever is remembered.
func (t *Topic) exists(ctx context.Context) (bool, error) {
	t.remember(nil)
	_, err := t.Existing(ctx)
	if errors.Is(err, ErrNotFound) {
		return false, nil
	}
	return err == nil, err
}

// unlist takes a name out of the registry.
func (t *Topic) unlist(ctx context.Context, name string) error {
	return forbiddenTo("take the topic out of the registry", "srem", t.client.SRem(ctx, Registry(t.prefix), name).Err())
}

// TopicsFrom returns some names of the registry, and the cursor of the next ones; 0 begins and ends. A
// name that enters or leaves meanwhile may be there or not; one may be there twice.
func TopicsFrom(ctx context.Context, client redis.UniversalClient, prefix string, cursor uint64, count int) ([]string, uint64, error) {
	names, next, err := client.SScan(ctx, Registry(prefix), cursor, "", int64(count)).Result()
	return names, next, forbidden(err)
}

// Topics calls f with the name of every topic in the registry, in no order, some perhaps twice.
func Topics(ctx context.Context, client redis.UniversalClient, prefix string, f func(topic string)) error {
	scan := client.SScan(ctx, Registry(prefix), 0, "", 1000).Iterator()
	for scan.Next(ctx) {
		f(scan.Val())
	}
	return forbidden(scan.Err())
}

// rescan is how often the registry is read again, in case an announcement was lost.
const rescan = 30 * time.Second

// WatchTopics calls found for every topic of the registry, and soon for each that enters it later, until the context
// ends. It may call found more than once for a topic, and says whether the topic has just been announced. A topic that
// it knows, that is there, and that the registry has lost, it enters again.
//
// It calls read each time that it has read the registry, or could not: then it tries again after a second, or, where
// that is not permitted, with the next rescan. It also calls read with ErrNotHeard where it may not listen for
// announcements; and with ErrNotEntered where it could not enter again what was missing.
func WatchTopics(ctx context.Context, client *Client, prefix string, found func(topic string, announced bool), read func(error)) {
	pubsub := client.Subscribe(ctx)
	ended := context.AfterFunc(ctx, func() { _ = pubsub.Close() }) // so that no answer is waited for, nor a connection that is being made
	defer ended()
	if err := subscribe(ctx, pubsub, NewTopics(prefix)); errors.Is(err, ErrForbidden) {
		read(fmt.Errorf("%w: %w", ErrNotHeard, err))
	}
	hearing := newHearing(client, NewTopics(prefix), true)
	defer hearing.end()
	incoming := hearing.listen(ctx, pubsub)
	timer := time.NewTimer(0)
	defer timer.Stop()
	known := map[string]bool{}
	look := func() {
		timer.Reset(rescan)
		missing := maps.Clone(known)
		err := Topics(ctx, client, prefix, func(topic string) {
			delete(missing, topic)
			known[topic] = true
			found(topic, false)
		})
		if err == nil {
			err = enterAgain(ctx, client, prefix, missing, known)
		} else if !errors.Is(err, ErrForbidden) {
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
				if CheckTopic(event.Payload) == nil { // anyone may publish
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

// ErrNotHeard is wrapped where new topics are not heard of, but found when the registry is read again.
var ErrNotHeard = errors.New("new topics are not heard of")

// RegistryNews tells what of reading the registry is worth a line in the log: while Redis is away, it is tried once a second.
// The zero value is ready.
type RegistryNews struct{ before error }

// Of returns what is to be logged of what WatchTopics calls read with, or "".
func (n *RegistryNews) Of(err error) string {
	if errors.Is(err, ErrNotHeard) { // which says nothing of reading
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

func sameTrouble(err, before error) bool {
	if err.Error() == before.Error() {
		return true
	}
	return Unreachable(err) && Unreachable(before) && errors.Is(err, ErrNotEntered) == errors.Is(before, ErrNotEntered)
}

// ErrNotEntered is wrapped where a topic is missing in the registry, and could not be entered again yet.
var ErrNotEntered = errors.New("a topic is missing in the registry")

// enterAgain enters topics in the registry that it has lost, and forgets those that are not there. One that cannot be asked for
// ends it until the next rescan: others on the same node could not be, either, and what is announced waits meanwhile.
func enterAgain(ctx context.Context, client *Client, prefix string, missing, known map[string]bool) error {
	for topic := range missing {
		there, err := NewTopic(client, prefix, topic).Relist(ctx)
		if err != nil {
			return fmt.Errorf("%w: %q: %w", ErrNotEntered, topic, err)
		}
		if !there {
			delete(known, topic)
		}
	}
	return nil
}
