package redistest

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
)

// Migration is the migration of a slot from one primary of a cluster to another, key by key, as
// redis-cli --cluster reshard does it.
type Migration struct {
	c        *Cluster
	slot     int64
	from, to *Instance
	source   redis.UniversalClient
}

// Migrate begins to move the slot of a key. Until Finish, the nodes redirect calls about keys of
// the slot.
func (c *Cluster) Migrate(key string, to *Instance) *Migration {
	c.t.Helper()
	from, _ := c.Owner(key)
	m := &Migration{c: c, from: from, to: to, source: from.Client(c.t)}
	m.slot = m.source.ClusterKeySlot(context.Background(), key).Val()
	c.do(to, "CLUSTER", "SETSLOT", m.slot, "IMPORTING", c.ID(from))
	c.do(from, "CLUSTER", "SETSLOT", m.slot, "MIGRATING", c.ID(to))
	return m
}

// Step moves a key of the slot that contains a text. It returns the key, or "" if there is none.
func (m *Migration) Step(containing string) string {
	m.c.t.Helper()
	keys, err := m.source.ClusterGetKeysInSlot(context.Background(), int(m.slot), 1_000_000).Result()
	if err != nil {
		m.c.t.Fatal(err)
	}
	i := slices.IndexFunc(keys, func(key string) bool { return strings.Contains(key, containing) })
	if i < 0 {
		return ""
	}
	// NOKEY means that the key has just been deleted or has expired.
	m.c.do(m.from, "MIGRATE", "127.0.0.1", m.to.Port(), keys[i], 0, time.Minute.Milliseconds())
	return keys[i]
}

// Finish moves the remaining keys, and assigns the slot to its new owner.
func (m *Migration) Finish() {
	m.c.t.Helper()
	for m.Step("") != "" {
	}
	for _, in := range append([]*Instance{m.to, m.from}, m.c.Nodes()...) { // the new owner first, because it tells the others
		if client := in.Client(m.c.t); strings.Contains(client.Info(context.Background(), "replication").Val(), "role:master") {
			m.c.do(in, "CLUSTER", "SETSLOT", m.slot, "NODE", m.c.ID(m.to))
		}
	}
}
