package servers

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"sync/atomic"
	"time"

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
		panic(fmt.Errorf("servers: the client %w", err))
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

// Sharded tells whether a channel is a sharded one, which is in the slot of its hash tag. Only such
// channels have a brace.
func Sharded(channel string) bool { return strings.Contains(channel, "{") }

// Ask makes a call that returns a value.
func Ask[T any](redisOrNode Redis, ask func(redis.UniversalClient) (T, error)) (value T, err error) {
	err = redisOrNode.Call(func(c redis.UniversalClient) (err error) {
		value, err = ask(c)
		return err
	})
	return value, err
}

// askGuarded is Ask for the user's client, or that of an heir.
func askGuarded[T any](user redis.UniversalClient, ask func(redis.UniversalClient) (T, error)) (value T, err error) {
	err = guarded(user, func(c redis.UniversalClient) (err error) {
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

// Addr returns the address of the only server, or "" for a Cluster.
func (c *Client) Addr() string {
	if c.single == nil {
		return ""
	}
	return c.single.Options().Addr
}

// Database returns the number of the database that the client uses. A Cluster has only 0.
func (c *Client) Database() int {
	if c.cluster != nil {
		return 0
	}
	return c.single.Options().DB
}

// Node returns a client of the server that has a key, as far as is known.
func (c *Client) Node(ctx context.Context, key string) (Node, error) {
	to, err := c.route(ctx, key)
	return to.node, err
}

// route is the way of a call to the server that has a key.
type route struct {
	node Node
	user redis.UniversalClient // reaches the node: the user's client, or that of the heir
	heir bool                  // the node is an heir: the user's client takes another for the master
}

// route returns the way to the server that has a key, as far as is known.
func (c *Client) route(ctx context.Context, key string) (route, error) {
	if c.cluster == nil {
		return route{node: Node{c.single}, user: c.user}, nil
	}
	var master *redis.Client
	err := c.Call(func(redis.UniversalClient) (err error) {
		master, err = c.cluster.MasterForKey(ctx, key)
		return err
	})
	if err != nil {
		return route{}, err
	}
	if heir, found := c.suspicions.heirOf(master.Options().Addr); found {
		return route{node: heir, user: heir.user, heir: true}, nil
	}
	return route{node: Node{master}, user: c.user}, nil
}

// ReadTimeout returns for how long a client of one server waits for an answer. Without a positive
// one it waits for ever.
func ReadTimeout(node redis.UniversalClient) time.Duration {
	return node.(single).Options().ReadTimeout
}

// PerNode returns parts of a list whose keys have one master each, in the order of the list. A
// client of one server has one part.
func PerNode[T any](ctx context.Context, c *Client, list []T, key func(T) string) (parts [][]T) {
	if c.cluster == nil || len(list) <= 1 {
		return [][]T{list}
	}
	place := map[string]int{} // in parts, by address
	for _, one := range list {
		addr := ""
		if node, err := c.Node(ctx, key(one)); err == nil { // else a call about it fails too
			addr = node.Addr()
		}
		i, known := place[addr]
		if !known {
			i = len(parts)
			place[addr], parts = i, append(parts, nil)
		}
		parts[i] = append(parts[i], one)
	}
	return parts
}

// FindNodes has the client of a Cluster read the slots again if a call failed because a node did
// not answer. By itself the client would ask nodes that are gone for another ten seconds.
func (c *Client) FindNodes(ctx context.Context, err error) {
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
