package queue

import (
	"context"
	"errors"
	"fmt"

	"github.com/redis/go-redis/v9"

	"github.com/redisdelay/watermill-redisdelay/internal/refusal"
	"github.com/redisdelay/watermill-redisdelay/internal/servers"
)

// Listed tells whether the topic is in the registry.
func (t *Topic) Listed(ctx context.Context) (bool, error) {
	listed, err := servers.AskKey(ctx, t.client, Registry(t.prefix), func(ctx context.Context, c redis.UniversalClient) (bool, error) {
		return c.SIsMember(ctx, Registry(t.prefix), t.Name).Result()
	})
	return listed, registryError(t.prefix, "look for the topic in the registry", "sismember", err)
}

// Enroll enters the topic in the registry, and announces a topic that is new there.
func (t *Topic) Enroll(ctx context.Context) error {
	// A server at its memory limit refuses SADD even if there is nothing to add.
	known, err := t.Listed(ctx)
	if err != nil || known {
		return err
	}
	_, err = servers.AskKey(ctx, t.client, Registry(t.prefix), func(ctx context.Context, c redis.UniversalClient) (int64, error) {
		return c.SAdd(ctx, Registry(t.prefix), t.Name).Result()
	})
	if err != nil {
		return registryError(t.prefix, "enter the topic in the registry", "sadd", err)
	}
	// If another process has just added it, that may have crashed before its announcement.
	channel := t.newTopics()
	_, err = servers.AskMaster(ctx, t.client, Registry(t.prefix), func(ctx context.Context, c redis.UniversalClient) (int64, error) {
		return c.Publish(ctx, channel, t.Name).Result() // where all listen
	})
	return refusal.To(fmt.Sprintf("announce the topic on channel %q", channel), "publish", err, TopicsRule(t.prefix))
}

// newTopics names the channel on which the topic is announced.
func (t *Topic) newTopics() string { return NewTopics(t.prefix, t.client.Database()) }

// PingRegistry returns an error if the server that has the registry does not answer.
func PingRegistry(ctx context.Context, client *servers.Client, prefix string) error {
	_, err := servers.AskMaster(ctx, client, Registry(prefix), func(ctx context.Context, c redis.UniversalClient) (string, error) {
		return c.Ping(ctx).Result()
	})
	return err
}

// ListedOf returns those of some names that are in the registry.
func ListedOf(ctx context.Context, client *servers.Client, prefix string, names []string) (listed []string, err error) {
	listed, err = servers.AskKey(ctx, client, Registry(prefix), func(ctx context.Context, c redis.UniversalClient) (listed []string, err error) {
		found := make([]*redis.BoolCmd, len(names))
		_, err = c.Pipelined(ctx, func(p redis.Pipeliner) error {
			for i, name := range names {
				found[i] = p.SIsMember(ctx, Registry(prefix), name)
			}
			return nil
		})
		for i, name := range names {
			if err == nil && found[i].Val() {
				listed = append(listed, name)
			}
		}
		return listed, err
	})
	return listed, registryError(prefix, "look for topics in the registry", "sismember", err)
}

// Relist enters a topic that exists in the registry again if it is missing there. In a Cluster a
// failover of the registry's node may lose the latest entries. It tells whether the topic exists.
func (t *Topic) Relist(ctx context.Context) (there bool, err error) {
	if there, err = t.exists(ctx); err != nil || !there {
		return false, err
	}
	if err := t.Enroll(ctx); err != nil {
		return false, err
	}
	if there, err = t.exists(ctx); err != nil || there {
		return there, err
	}
	return false, t.Delist(ctx) // it was deleted meanwhile
}

// Delist removes a deleted topic from the registry.
func (t *Topic) Delist(ctx context.Context) error {
	if err := t.Unlist(ctx, t.Name); err != nil {
		return err
	}
	// A process may have made the topic anew meanwhile, while the registry still had it.
	if there, err := t.exists(ctx); err != nil || !there {
		return err
	}
	return t.Enroll(ctx)
}

// exists asks the server, without using the remembered groups.
func (t *Topic) exists(ctx context.Context) (bool, error) {
	t.remember(nil)
	_, err := t.Existing(ctx)
	if errors.Is(err, ErrNotFound) {
		return false, nil
	}
	return err == nil, err
}

// Unlist removes a name from the registry.
func (t *Topic) Unlist(ctx context.Context, name string) error {
	_, err := servers.AskKey(ctx, t.client, Registry(t.prefix), func(ctx context.Context, c redis.UniversalClient) (int64, error) {
		return c.SRem(ctx, Registry(t.prefix), name).Result()
	})
	return registryError(t.prefix, "take the topic out of the registry", "srem", err)
}

// TopicsFrom returns some names of the registry, and the cursor of the next; 0 begins and ends. A
// name may come twice. A name that is added or removed meanwhile may come or not.
func TopicsFrom(ctx context.Context, client *servers.Client, prefix string, cursor uint64, count int) (names []string, next uint64, err error) {
	type page struct {
		names []string
		next  uint64
	}
	got, err := servers.AskKey(ctx, client, Registry(prefix), func(ctx context.Context, c redis.UniversalClient) (p page, err error) {
		p.names, p.next, err = c.SScan(ctx, Registry(prefix), cursor, "", int64(count)).Result()
		return p, err
	})
	return got.names, got.next, registryError(prefix, "read the registry", "sscan", err)
}

// Topics calls f with the name of every topic in the registry, in no order. A name may come twice.
func Topics(ctx context.Context, client *servers.Client, prefix string, f func(topic string)) error {
	for cursor := uint64(0); ; {
		names, next, err := TopicsFrom(ctx, client, prefix, cursor, 1000)
		if err != nil {
			return err
		}
		for _, name := range names {
			f(name)
		}
		if cursor = next; cursor == 0 {
			return nil
		}
	}
}

// registryError is RefusedTo for a command on the registry. It names the registry if that has a
// wrong type.
func registryError(prefix, what, command string, err error) error {
	if wrongType(err) {
		err = fmt.Errorf("the key %q has to be a set: %w", Registry(prefix), err)
	}
	return refusal.To(what, command, err, refusal.Keys(prefix))
}
