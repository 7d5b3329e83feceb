package queuetest

import (
	"context"
	"strings"

	"github.com/redis/go-redis/v9"

	"github.com/redisdelay/watermill-redisdelay/internal/queue"
)

// Place is a message in a group.
type Place struct{ Topic, Group, ID string }

// Holding is the state of a message in a group.
type Holding struct {
	State string // "waiting", "ready", "in_hand", "retrying" or "dead"
	Token string // token of its lease, if it is in unack
}

// Holdings returns the state of each message in each group, and the violations. A pending message
// is pending in every group.
func Holdings(ctx context.Context, client redis.UniversalClient, prefix string) (map[Place]Holding, []string, error) {
	topics, found, err := inspect(ctx, client, prefix)
	if err != nil {
		return nil, nil, err
	}
	held := map[Place]Holding{}
	for _, s := range topics {
		for _, group := range s.groups() {
			s.holdings(group, held)
		}
	}
	return held, found, nil
}

func (s *snapshot) holdings(group string, held map[Place]Holding) {
	enter := func(id, state, token string) { held[Place{s.topic, group, id}] = Holding{state, token} }
	for id := range s.get("pending", "").scores {
		enter(id, "waiting", "")
	}
	for _, entry := range s.get("ready", group).list {
		if id, _, _ := strings.Cut(entry, ":"); id != strings.Repeat("0", queue.IDLength) { // an entry of zeros is void
			enter(id, "ready", "")
		}
	}
	leases := s.get("leases", group).fields
	for id := range s.get("unack", group).scores {
		enter(id, "in_hand", leases[id])
	}
	for key, state := range map[string]string{"retry": "retrying", "dead": "dead"} {
		for id := range s.get(key, group).scores {
			enter(id, state, "")
		}
	}
}
