package faults

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/redisdelay/watermill-redisdelay/internal/test/redistest"
)

// slotMove is the migration of a slot from one primary of a Cluster to another, key by key, as
// redis-cli --cluster reshard does it.
type slotMove struct {
	t        *testing.T
	c        *redistest.Cluster
	slot     int64
	from, to *redistest.Instance
	source   redis.UniversalClient
}

// moveSlot begins to move the slot of a key. Until finish, the nodes redirect calls about keys of
// the slot.
func moveSlot(t *testing.T, c *redistest.Cluster, key string, to *redistest.Instance) *slotMove {
	from, _ := c.Owner(key)
	m := &slotMove{t: t, c: c, from: from, to: to, source: from.Client(t)}
	m.slot = m.source.ClusterKeySlot(context.Background(), key).Val()
	m.do(to, "CLUSTER", "SETSLOT", m.slot, "IMPORTING", c.ID(from))
	m.do(from, "CLUSTER", "SETSLOT", m.slot, "MIGRATING", c.ID(to))
	return m
}

func (m *slotMove) do(in *redistest.Instance, args ...any) {
	m.t.Helper()
	client := in.Client(m.t)
	defer client.Close()
	require.NoError(m.t, client.Do(context.Background(), args...).Err())
}

// step moves a key of the slot that contains a text. It returns false if there is none.
func (m *slotMove) step(containing string) bool {
	m.t.Helper()
	keys, err := m.source.ClusterGetKeysInSlot(context.Background(), int(m.slot), 1_000_000).Result()
	require.NoError(m.t, err)
	i := slices.IndexFunc(keys, func(key string) bool { return strings.Contains(key, containing) })
	if i < 0 {
		return false
	}
	// NOKEY means that the key has just been deleted or has expired.
	m.do(m.from, "MIGRATE", "127.0.0.1", m.to.Port(), keys[i], 0, time.Minute.Milliseconds())
	return true
}

// finish moves the remaining keys, and assigns the slot to its new owner, which tells the others.
func (m *slotMove) finish() {
	m.t.Helper()
	for m.step("") {
	}
	for _, in := range append([]*redistest.Instance{m.to, m.from}, m.c.Nodes()...) {
		if strings.Contains(in.Client(m.t).Info(context.Background(), "replication").Val(), "role:master") {
			m.do(in, "CLUSTER", "SETSLOT", m.slot, "NODE", m.c.ID(m.to))
		}
	}
}
