package queue

import (
	"time"

	"github.com/redis/go-redis/v9"
)

// NewCall returns a call of a script. It encodes a bool, a time.Duration and a Due among the args.
func NewCall(s *Script, keys []string, args ...any) *Call {
	for i, arg := range args {
		switch arg := arg.(type) {
		case bool:
			args[i] = flag(arg)
		case time.Duration:
			args[i] = millis(arg)
		case Due:
			args[i] = arg.encode()
		}
	}
	return &Call{script: s, keys: keys, args: args}
}

// Cmd returns the command that Do sent, with its reply.
func (c *Call) Cmd() *redis.Cmd { return c.cmd }

// Client returns the client of the topic.
func (t *Topic) Client() *Client { return t.client }

// Keys returns the keys of the topic.
func (t *Topic) Keys() Keys { return t.keys }
