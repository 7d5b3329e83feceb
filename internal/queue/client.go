package queue

import (
	"context"
	"errors"
	"fmt"
	"reflect"

	"github.com/redis/go-redis/v9"
)

// Client is a go-redis client whose kind is known: a client of one server, or of a Cluster.
// NewClient asks for the kind once.
type Client struct {
	redis.UniversalClient
	single  Node    // nil for a Cluster
	cluster cluster // nil for one server
}

// Node is a client of one server: a *redis.Client, or a struct that embeds one.
type Node interface {
	redis.UniversalClient
	Options() *redis.Options
}

// cluster is a client of a Cluster: a *redis.ClusterClient, or a struct that embeds one.
type cluster interface {
	Options() *redis.ClusterOptions
	MasterForKey(ctx context.Context, key string) (*redis.Client, error)
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
	case Node:
		_ = kind.Options()
		return &Client{UniversalClient: client, single: kind}, nil
	case cluster:
		if kind.Options().ReadOnly {
			return nil, errors.New("reads from replicas, which may be behind; use a *redis.ClusterClient without ReadOnly, RouteByLatency and RouteRandomly")
		}
		return &Client{UniversalClient: client, cluster: kind}, nil
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

// Cluster tells whether the client is one of a Cluster.
func (c *Client) Cluster() bool { return c.cluster != nil }

// Database returns the number of the database that the client uses. A Cluster has only 0.
func (c *Client) Database() int {
	if c.cluster != nil {
		return 0
	}
	return c.single.Options().DB
}

// Node returns a client of the server that has a key, as far as the client knows.
func (c *Client) Node(ctx context.Context, key string) (Node, error) {
	if c.cluster == nil {
		return c.single, nil
	}
	node, err := c.cluster.MasterForKey(ctx, key)
	if err != nil {
		return nil, err // a nil *redis.Client would be a Node that is not nil
	}
	return node, nil
}

// EachNode calls ask for every server, in a Cluster concurrently and for replicas too. It returns
// the first error.
func (c *Client) EachNode(ctx context.Context, ask func(context.Context, Node) error) error {
	if c.cluster == nil {
		return ask(ctx, c.single)
	}
	return c.cluster.ForEachShard(ctx, func(ctx context.Context, node *redis.Client) error { return ask(ctx, node) })
}

// findNodes has the client of a Cluster read the slots again if a call failed because a node did
// not answer. By itself the client would ask nodes that are gone for another ten seconds.
func (c *Client) findNodes(ctx context.Context, err error) {
	if c.cluster != nil && Unreachable(err) {
		c.cluster.ReloadState(ctx)
	}
}
