package queue

import (
	"context"
	"errors"
	"fmt"

	"github.com/redis/go-redis/v9"
)

// Listed tells whether the topic is in the registry.
func (t *Topic) Listed(ctx context.Context) (bool, error) {
	listed, err := t.client.SIsMember(ctx, Registry(t.prefix), t.Name).Result()
	return listed, ForbiddenTo("look for the topic in the registry", "sismember", err)
}

// Enroll enters the topic in the registry, and announces a topic that is new there.
func (t *Topic) Enroll(ctx context.Context) error {
	// A server at its memory limit refuses SADD even where there is nothing to add.
	known, err := t.Listed(ctx)
	if err != nil || known {
		return err
	}
	if err := t.client.SAdd(ctx, Registry(t.prefix), t.Name).Err(); err != nil {
		return ForbiddenTo("enter the topic in the registry", "sadd", err)
	}
	// Announced even if another has just added it, who may have died since.
	err = t.client.Publish(ctx, NewTopics(t.prefix), t.Name).Err()
	return ForbiddenTo(fmt.Sprintf("announce the topic on channel %q", NewTopics(t.prefix)), "publish", err)
}

// Relist enters the topic in the registry if it is there, and is missing in it: in a Cluster the
// registry is on a node of its own, whose failover may forget what was just entered. It tells
// whether the topic is there.
func (t *Topic) Relist(ctx context.Context) (there bool, err error) {
	if there, err = t.exists(ctx); err != nil || !there {
		return false, err
	}
	if err := t.Enroll(ctx); err != nil {
		return false, err
	}
	if there, err = t.exists(ctx); err != nil || there { // else it was deleted meanwhile
		return there, err
	}
	return false, t.Delist(ctx)
}

// Delist removes a deleted topic from the registry.
func (t *Topic) Delist(ctx context.Context) error {
	if err := t.Unlist(ctx, t.Name); err != nil {
		return err
	}
	// A process that used the topic meanwhile has made it anew, and may take it for listed.
	if there, err := t.exists(ctx); err != nil || !there {
		return err
	}
	return t.Enroll(ctx)
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

// Unlist removes a name from the registry.
func (t *Topic) Unlist(ctx context.Context, name string) error {
	return ForbiddenTo("take the topic out of the registry", "srem", t.client.SRem(ctx, Registry(t.prefix), name).Err())
}

// TopicsFrom returns some names of the registry, and the cursor of the next ones; 0 begins and
// ends. A name that enters or leaves meanwhile may be there or not; one may be there twice.
func TopicsFrom(ctx context.Context, client redis.UniversalClient, prefix string, cursor uint64, count int) ([]string, uint64, error) {
	names, next, err := client.SScan(ctx, Registry(prefix), cursor, "", int64(count)).Result()
	return names, next, Forbidden(err)
}

// Topics calls f with the name of every topic in the registry, in no order, some perhaps twice.
func Topics(ctx context.Context, client redis.UniversalClient, prefix string, f func(topic string)) error {
	scan := client.SScan(ctx, Registry(prefix), 0, "", 1000).Iterator()
	for scan.Next(ctx) {
		f(scan.Val())
	}
	return Forbidden(scan.Err())
}
