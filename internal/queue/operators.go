package queue

import "github.com/redis/go-redis/v9"

// Cmd returns the command that Do sent, with its reply.
func (c *Call) Cmd() *redis.Cmd { return c.cmd }

// Client returns the client of the topic.
func (t *Topic) Client() *Client { return t.client }

// Keys returns the keys of the topic.
func (t *Topic) Keys() Keys { return t.keys }
