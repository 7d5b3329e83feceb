package queue

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"sync/atomic"

	"github.com/redis/go-redis/v9"

	"github.com/redisdelay/watermill-redisdelay/internal/guard"
)

// Client is a go-redis client whose kind is known: a client of one server, or of a Cluster.
// NewClient asks for the kind once.
//
// All calls to Redis go through Client and Node, because they run the user's code, such as hooks. A
// panic there becomes an error. It says nothing of the call, like the error of a lost answer. So
// does an error whose methods panic.
type Client struct {
	user    redis.UniversalClient
	single  single  // nil for a Cluster
	cluster cluster // nil for one server

	suspicions suspicions   // of nodes of a Cluster
	abandoned  atomic.Int64 // calls that were abandoned, and are under way
}

// Redis is a Client or a Node.
type Redis interface {
	// Call makes calls to Redis, and returns their error.
	Call(call func(redis.UniversalClient) error) error
	// Subscribe returns a Pub/Sub connection.
	Subscribe(ctx context.Context, channels ...string) (*redis.PubSub, error)
}

// Node is a client of one server.
type Node struct{ user single }

// single is a client of one server: a *redis.Client, or a struct that embeds one.
type single interface {
	redis.UniversalClient
	Options() *redis.Options
}

// cluster is a client of a Cluster: a *redis.ClusterClient, or a struct that embeds one.
type cluster interface {
	Options() *redis.ClusterOptions
	MasterForKey(ctx context.Context, key string) (*redis.Client, error)
	SlaveForKey(ctx context.Context, key string) (*redis.Client, error)
	ForEachShard(ctx context.Context, ask func(context.Context, *redis.Client) error) error
	ReloadState(ctx context.Context)
}

// ring is a client of several servers that know nothing of one another: a *redis.Ring, or a struct
// that embeds one.
type ring interface{ Options() *redis.RingOptions }

// usable ends the errors about clients that cannot be used.
const usable = "pass a *redis.Client, a *redis.ClusterClient, or a struct that embeds one of them as a pointer"

// NewClient returns the adapter of a client, or an error that says why the client cannot be used.
// It does not talk to Redis.
func NewClient(client redis.UniversalClient) (c *Client, err error) {
	if client == nil {
		return nil, errors.New("is nil; it has to be a connected go-redis client")
	}
	if v := reflect.ValueOf(client); v.Kind() == reflect.Pointer && v.IsNil() {
		return nil, fmt.Errorf("is a nil %T; it has to be a connected go-redis client", client)
	}
	defer func() {
		if recover() != nil { // Options panics if the embedded pointer is nil
			c, err = nil, fmt.Errorf("is a %T without options, as one that embeds nil; %s", client, usable)
		}
	}()
	switch kind := client.(type) {
	case single:
		_ = kind.Options()
		return &Client{user: client, single: kind}, nil
	case cluster:
		if kind.Options().ReadOnly {
			return nil, errors.New("reads from replicas, which may be behind; use a *redis.ClusterClient without ReadOnly, RouteByLatency and RouteRandomly")
		}
		return &Client{user: client, cluster: kind}, nil
	case ring:
		return nil, errors.New("is or embeds a *redis.Ring, whose shards do not share wake-ups; use a *redis.Client or *redis.ClusterClient")
	}
	return nil, fmt.Errorf("is a %T, whose methods do not tell whether it is for one server or for a Cluster; %s", client, usable)
}

// MustClient is NewClient for a client that CheckClient accepts. It panics for others.
func MustClient(client redis.UniversalClient) *Client {
	c, err := NewClient(client)
	if err != nil {
		panic(fmt.Errorf("queue: the client %w", err))
	}
	return c
}

// CheckClient returns an error that says why a client cannot be used, or nil.
func CheckClient(client redis.UniversalClient) error {
	_, err := NewClient(client)
	return err
}

// User returns the user's client, to tell clients apart. Calls go through Call.
func (c *Client) User() redis.UniversalClient { return c.user }

// Call implements Redis.
func (c *Client) Call(call func(redis.UniversalClient) error) error { return guarded(c.user, call) }

// Subscribe implements Redis.
func (c *Client) Subscribe(ctx context.Context, channels ...string) (*redis.PubSub, error) {
	return subscribe(ctx, c.user, channels)
}

// Call implements Redis.
func (n Node) Call(call func(redis.UniversalClient) error) error { return guarded(n.user, call) }

// Subscribe implements Redis.
func (n Node) Subscribe(ctx context.Context, channels ...string) (*redis.PubSub, error) {
	return subscribe(ctx, n.user, channels)
}

// Ask makes a call that returns a value.
func Ask[T any](redisOrNode Redis, ask func(redis.UniversalClient) (T, error)) (value T, err error) {
	err = redisOrNode.Call(func(c redis.UniversalClient) (err error) {
		value, err = ask(c)
		return err
	})
	return value, err
}

// calling names calls to Redis in errors.
const calling = "a call to Redis"

// guarded makes calls with the user's client.
func guarded(user redis.UniversalClient, call func(redis.UniversalClient) error) (err error) {
	defer guard.Recover(&err, calling)
	return guard.Sound(call(user))
}

func subscribe(ctx context.Context, user redis.UniversalClient, channels []string) (pubsub *redis.PubSub, err error) {
	err = guarded(user, func(c redis.UniversalClient) error {
		pubsub = c.Subscribe(ctx, channels...)
		return nil
	})
	return pubsub, err
}

// Cluster tells whether the client is one of a Cluster.
func (c *Client) Cluster() bool { return c.cluster != nil }

// Database returns the number of the database that the client uses. A Cluster has only 0.
func (c *Client) Database() int {
	if c.cluster != nil {
		return 0
	}
	return c.single.Options().DB
}

// Node returns a client of the server that has a key, as far as is known.
func (c *Client) Node(ctx context.Context, key string) (Node, error) {
	node, _, err := c.route(ctx, key)
	return node, err
}

// route returns the server that has a key, and a client that reaches it: the user's, or that of
// the node if the user's does not know yet that the node has taken over.
func (c *Client) route(ctx context.Context, key string) (Node, redis.UniversalClient, error) {
	if c.cluster == nil {
		return Node{c.single}, c.user, nil
	}
	var master *redis.Client
	err := c.Call(func(redis.UniversalClient) (err error) {
		master, err = c.cluster.MasterForKey(ctx, key)
		return err
	})
	if err != nil {
		return Node{}, nil, err
	}
	if heir, found := c.suspicions.heirOf(master.Options().Addr); found {
		return heir, heir.user, nil
	}
	return Node{master}, c.user, nil
}

// EachNode calls ask for every server, in a Cluster concurrently and for replicas too. It does not
// wait for nodes that are lost. It returns the first error.
func (c *Client) EachNode(ctx context.Context, ask func(context.Context, Node) error) error {
	if c.cluster == nil {
		return ask(ctx, Node{c.single})
	}
	return c.Call(func(redis.UniversalClient) error {
		return c.cluster.ForEachShard(ctx, func(ctx context.Context, user *redis.Client) error {
			node := Node{user}
			err, lost, release := unlessLost(ctx, c, node, "", func(ctx context.Context) error { return ask(ctx, node) })
			if lost != nil {
				release()
				return errLost
			}
			return err
		})
	})
}

// findNodes has the client of a Cluster read the slots again if a call failed because a node did
// not answer. By itself the client would ask nodes that are gone for another ten seconds.
func (c *Client) findNodes(ctx context.Context, err error) {
	if c.cluster != nil && Unreachable(err) {
		c.reload(ctx)
	}
}

// reload has the client of a Cluster read the slots again, and does not wait for that.
func (c *Client) reload(ctx context.Context) {
	_ = c.Call(func(redis.UniversalClient) error { // it returns nothing, and panics of hooks are not the call's
		c.cluster.ReloadState(ctx)
		return nil
	})
}
