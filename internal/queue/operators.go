package queue

import (
	"context"

	"github.com/redis/go-redis/v9"

	"github.com/redisdelay/watermill-redisdelay/internal/servers"
)

// Cmd returns the command that Do sent, with its reply.
func (c *Call) Cmd() *redis.Cmd { return c.cmd }

// SetCmd is for servers.Send.
func (c *Call) SetCmd(cmd *redis.Cmd) { c.cmd = cmd }

// Client returns the client of the topic.
func (t *Topic) Client() *servers.Client { return t.client }

// Prefix returns the prefix of the topic's keys.
func (t *Topic) Prefix() string { return t.prefix }

// Keys returns the keys of the topic.
func (t *Topic) Keys() Keys { return t.keys }

// Key returns a key of the topic, by which a Cluster's node that has the topic is found.
func (t *Topic) Key() string { return t.keys.Meta() }

// Master returns the address of the node of a Cluster that has the topic, as far as the client
// knows.
func (t *Topic) Master(ctx context.Context) (string, error) { return t.client.Master(ctx, t.Key()) }
