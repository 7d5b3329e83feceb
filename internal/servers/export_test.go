package servers

import (
	"context"
	"time"

	"github.com/redis/go-redis/v9"
)

// ErrLost is errLost.
var ErrLost = errLost

// Suspect begins a suspicion of a node, and returns how it asks a replica, and what ends it.
func (c *Client) Suspect(node *redis.Client, key string) (asks func(context.Context) (Node, bool), release func()) {
	s, release := c.suspect(Node{node}, key)
	return s.askReplica, release
}

// Inherit has a node be the heir of the one with this address.
func (c *Client) Inherit(lost string, node *redis.Client) {
	all := &c.suspicions
	all.mu.Lock()
	defer all.mu.Unlock()
	all.heirs = map[string]heir{lost: {Node{node}, time.Now()}}
}

// HasHeir tells whether the node with this address has an heir.
func (c *Client) HasHeir(lost string) bool {
	_, found := c.suspicions.heirOf(lost)
	return found
}
